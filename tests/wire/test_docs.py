from tests.wire.docs import DOCS, with_table


def test_the_table_in_the_docs_is_as_the_fixtures_are() -> None:
    """`python -m tests.wire.record --summaries` writes it."""
    assert with_table(DOCS.read_text()) == DOCS.read_text()
