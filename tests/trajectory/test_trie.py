from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.capture.ids import pack
from polar_mitm.trajectory.trie import Node, grow

sequences = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=12)


@given(sequences, st.data())
def test_a_trie_gives_back_what_was_put_in_and_what_two_sequences_share(
    many: list[list[int]], data: st.DataObject
) -> None:
    root = Node()
    nodes: list[Node] = []
    for ids in many:
        if nodes and data.draw(st.booleans()):  # continue another sequence from somewhere in it
            base = data.draw(st.integers(0, len(nodes) - 1))
            length = data.draw(st.integers(0, len(many[base])))
            ids[:0] = many[base][:length]
            nodes.append(grow(nodes[base].at(length), pack(ids[length:])))
        else:
            nodes.append(grow(root, pack(ids)))
        nodes[-1].mark("end", len(nodes) - 1)
    for number, (ids, node) in enumerate(zip(many, nodes, strict=True)):
        assert node.end == len(ids) and node.read(0, node.end) == ids
        start, end = sorted(data.draw(st.tuples(st.integers(0, 14), st.integers(0, 14))))
        assert node.read(start, end) == ids[start:end]
        for other_ids, other in zip(many, nodes, strict=True):
            same = 0
            while same < min(len(ids), len(other_ids)) and ids[same] == other_ids[same]:
                same += 1
            assert node.shared(other) == same
            assert (node is other) == (ids == other_ids)
        found = {mark for above in node.up() for mark in above.marks.get("end", ())}
        assert found == {place for place, other_ids in enumerate(many) if ids[: len(other_ids)] == other_ids}
        assert number in found
