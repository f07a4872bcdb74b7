"""Where a reply ends: held against what each template writes after it, which is known for the stand-in's templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.engine.exact_cut import (
    Continuation,
    End,
    NotBuilt,
    agreeing,
    continues,
    cut_of,
    end_of,
    follower,
    joined,
    other_words,
    tail_start,
    written_between,
)
from tests.fakes.templates import MARKS, Json, Template, chatml, encoded, forgetful, renamed_end, unclosed

CLOSED = (chatml, forgetful)
END = "<|im_end|>"
words = st.text("ao<\n |", max_size=6) | st.sampled_from(
    [END, f"a{END}\n<|im_start|>user\no", "other", "<think>a</think>"]
)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str, thought: str = "") -> Json:
    return {"role": "assistant", "content": text, "reasoning": thought}


def called(argument: str) -> Json:
    function = {"name": "run", "arguments": f'{{"command":"{argument}"}}'}
    return said("") | {"tool_calls": [{"id": "call_0", "type": "function", "function": function}]}


def result(text: str) -> Json:
    return {"role": "tool", "tool_call_id": "call_0", "content": text}


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Json], list[Json]]:
    """A conversation that ends with a reply, and what follows it."""
    history = [user(draw(words))]
    for _ in range(draw(st.integers(0, 2))):
        history += [said(draw(words), draw(words)), user(draw(words))]
    if draw(st.booleans()):
        return [*history, called("ls")], [result(draw(words)), *map(user, draw(st.lists(words, max_size=2)))]
    return [*history, said(draw(words), draw(words))], [
        user(draw(words)),
        *map(user, draw(st.lists(words, max_size=1))),
    ]


def learned(template: Template, role: str = "user") -> End:
    """What the client learns of a template, by the same three prompts."""
    reply, new, tools = (said, user, []) if role == "user" else (called, result, [{"type": "function"}])
    prompts = [
        encoded(template([user("hi"), reply(one), new(other)], tools, True))
        for one, other in (("one", "red"), ("two", "red"), ("one", "blue"))
    ]
    alone = len(encoded(template([user("hi"), reply("one")], tools, False)))
    likely = [] if role == "user" else [learned(template).first or 0, *prompts[0][alone : alone + 1]]
    end = end_of(written_between(*prompts), *likely)
    assert end
    return end


def cut(template: Template, history: list[Json], new: list[Json], sampled: list[int], *, ended: bool) -> list[int]:
    """The prompt as the engine's client builds it."""
    prompt = encoded(template(history[:-1], [], True))
    continuation = Continuation([*prompt, *sampled], len(prompt), ended, len(history))
    messages = [*history, *new]
    end = learned(template, new[0]["role"])
    rendered = encoded(template(messages, [], True))
    other = encoded(template(other_words(messages, len(history)), [], True))
    start = tail_start(rendered, other, cut_of(continuation, end), at_least=agreeing(rendered, prompt))
    return joined(continuation, rendered, start, end)


@given(conversations(), words, st.booleans(), st.sampled_from(CLOSED))
def test_the_prompt_is_what_was_sampled_and_then_what_the_template_writes_after_a_reply(
    conversation: tuple[list[Json], list[Json]], sampled: str, ended: bool, template: Template
) -> None:
    history, new = conversation
    prompt = encoded(template(history[:-1], [], True))
    after = "" if ended else END
    expected = [*prompt, *encoded(sampled + (END if ended else "") + after + "\n" + chatml(new, [], True))]
    assert cut(template, history, new, encoded(sampled + (END if ended else "")), ended=ended) == expected


@given(conversations(), words)
def test_where_nothing_closes_a_reply_the_mark_that_the_model_ended_it_with_begins_what_follows(
    conversation: tuple[list[Json], list[Json]], sampled: str
) -> None:
    history, new = conversation
    prompt = encoded(unclosed(history[:-1], [], True))
    follows = encoded(unclosed(new, [], True))
    right = [*encoded(sampled), follows[0]]
    assert cut(unclosed, history, new, right, ended=True) == [*prompt, *encoded(sampled), *follows]
    assert cut(unclosed, history, new, encoded(sampled), ended=False) == [*prompt, *encoded(sampled), *follows]


def test_a_model_that_ends_its_reply_with_another_token_than_the_template_is_not_built_on() -> None:
    with pytest.raises(NotBuilt, match="ended its reply with token 4, which the template does not") as caught:
        cut(unclosed, [user("a"), called("ls")], [result("b")], [*encoded("x"), MARKS["<|user|>"]], ended=True)
    assert caught.value.broken == "end_token"


def place(template: Template, history: list[Json], new: list[Json]) -> int:
    """Where a reply is found to end in a prompt of this template, when it is taken for ChatML."""
    prompt = encoded(chatml(history[:-1], [], True))
    messages = [*history, *new]
    rendered = encoded(template(messages, [], True))
    other = encoded(template(other_words(messages, len(history)), [], True))
    return tail_start(rendered, other, MARKS[END], at_least=agreeing(rendered, prompt))


def test_a_template_that_leaves_out_what_follows_is_not_built_on() -> None:
    def silent(messages: list[Json], tools: list[Json], go_on: bool) -> str:
        return chatml([message for message in messages if message["role"] != "tool"], tools, go_on)

    with pytest.raises(NotBuilt, match="does not show the message after the reply"):
        place(silent, [user("a"), called("ls")], [result("b")])


def test_a_template_that_moves_what_follows_to_the_front_is_not_built_on() -> None:
    def hoisting(messages: list[Json], tools: list[Json], go_on: bool) -> str:
        return chatml(sorted(messages, key=lambda message: message["role"] != "tool"), tools, go_on)

    with pytest.raises(NotBuilt, match="no end of the reply") as caught:
        place(hoisting, [user("a"), called("ls")], [result("b")])
    assert caught.value.broken == "template"


def test_an_end_that_comes_before_the_reply_can_have_begun_is_not_taken_for_its_end() -> None:
    def open_ended(messages: list[Json], tools: list[Json], go_on: bool) -> str:
        """Closes no reply that calls a tool."""
        return chatml(messages, tools, go_on).replace(f"</tool_call>{END}", "</tool_call>")

    with pytest.raises(NotBuilt, match="no end of the reply"):
        place(open_ended, [user("a"), called("ls")], [result("b")])


@pytest.mark.parametrize("role", ["assistant", "system", "none"])
def test_only_a_users_or_a_tools_message_may_follow(role: str) -> None:
    messages = [user("a"), said("b"), *([] if role == "none" else [{"role": role, "content": "c"}])]
    with pytest.raises(NotBuilt, match="message follows the reply"):
        follower(messages, 2)


@given(words)
def test_other_words_differ_from_the_first_letter_on(text: str) -> None:
    (changed,) = other_words([user(text)], 0)
    assert changed["content"].strip()[:1] != text.strip()[:1]


def test_a_prompt_that_comes_back_as_it_was_sampled_is_told() -> None:
    ids = encoded("abc")
    assert continues(encoded("abcd"), Continuation(ids, 1, True, 1))
    assert not continues(ids, Continuation(ids, 1, True, 1))
    assert not continues(encoded("abd") * 9000, Continuation(ids, 1, True, 1))


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12), st.integers(0, 9000))
def test_agreeing_counts_the_common_beginning(one: list[int], other: list[int], shared: int) -> None:
    length = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert agreeing([7] * shared + one, [7] * shared + other) == shared + length


def padded(messages: list[Json], tools: list[Json], go_on: bool) -> str:
    """Each turn ends with a line break, and then its mark."""
    return chatml(messages, tools, go_on).replace(END, f"\n{END}")


@pytest.mark.parametrize(
    ("template", "role", "first", "before"),
    [
        (chatml, "user", END, ""),
        (chatml, "tool", END, ""),
        (forgetful, "user", END, ""),
        (padded, "user", END, "\n"),
        (unclosed, "user", "<|user|>", ""),
        (unclosed, "tool", "<|observation|>", ""),
        (renamed_end, "user", "<|eot|>", ""),
        (renamed_end, "tool", "<|eot|>", ""),
    ],
)
def test_what_ends_a_reply_is_learned_from_three_prompts(
    template: Template, role: str, first: str, before: str
) -> None:
    end = learned(template, role)
    assert (end.first, list(end.before)) == (MARKS[first], encoded(before))
    assert MARKS[first] in end.known


def test_what_the_template_writes_before_the_end_is_written_where_the_model_did_not_end_its_reply() -> None:
    history, new = [user("a"), said("b")], [user("c")]
    assert cut(padded, history, new, encoded("x"), ended=False) == encoded(
        padded([user("a"), said("x"), *new], [], True)
    )
    ended = cut(padded, history, new, encoded(f"x{END}"), ended=True)
    assert ended == encoded(padded([user("a"), said("x"), *new], [], True).replace(f"x\n{END}", f"x{END}"))


@pytest.mark.parametrize("likely", [(), (7,)])
def test_without_a_token_that_stands_there_once_there_is_no_end(likely: tuple[int, ...]) -> None:
    assert end_of([], *likely) is None
    assert end_of([1, 2, 1, 2], *likely) is None
    assert end_of([1, 7, 1], *likely) == End(frozenset({7}), 7, () if likely else (1,))


def test_of_a_reply_that_no_likely_token_ends_only_an_end_of_the_models_own_is_known() -> None:
    end = end_of([1, 2, 3], 7, 8)
    assert end == End(frozenset({1, 2, 3}), None)
    assert cut_of(Continuation([9, 3], 1, True, 1), end) == 3
    with pytest.raises(NotBuilt, match="what the template writes first after such a reply is not known"):
        cut_of(Continuation([9, 3], 1, False, 1), end)


@pytest.mark.parametrize("silent", ["reply", "words"])
def test_a_template_that_shows_no_reply_or_no_words_teaches_nothing(silent: str) -> None:
    prompts = ([1, 5, 2, 6], [1, 5, 2, 6], [1, 5, 2, 7]) if silent == "reply" else ([1, 5, 2], [1, 4, 2], [1, 5, 2])
    assert written_between(*map(list, prompts)) == []
