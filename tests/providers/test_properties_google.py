"""Google generateContent on random data: the stream is the whole reply, and a conversation keeps its promises."""

import json
from itertools import groupby
from typing import Any

from google import genai
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.chat import Assistant, CallError, ChatReply, ChatRequest, Message, ToolResult, text_of
from polar_mitm.providers import google
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.google_reply import GoogleAsk
from tests.providers.early import early
from tests.providers.invariants import Split, check, check_prefixes, cuts, replies

ASK = GoogleAsk(ChatRequest(()), "gemini-3-pro", stream=True)
IN_ARRAY = GoogleAsk(ChatRequest(()), "gemini-3-pro", stream=True, framing="json-array")
IN_WRAPPER = GoogleAsk(ChatRequest(()), "gemini-3-pro", stream=True, wrapped=True)
SPLIT = Split("text/event-stream")
CLIENT = genai.Client(api_key="x", http_options=types.HttpOptions(client_args={"transport": SPLIT.transport()}))


def seen(response: types.GenerateContentResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_none=True, by_alias=True, exclude={"sdk_http_response"})


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of the chunks: the parts in order, adjacent texts joined, the rest of the last."""
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    whole: list[Any] = []
    for (is_text, thought), group in groupby(parts, key=lambda part: ("text" in part, part.get("thought", False))):
        run = list(group)
        if not is_text:
            whole.extend(run)
        elif text := "".join(part["text"] for part in run):
            whole.append({"text": text} | ({"thought": True} if thought else {}))
    last = chunks[-1]
    content = {"role": "model", "parts": whole}
    return {**last, "candidates": [{**last["candidates"][0], "content": content}]}


@given(replies(), cuts, st.integers(0, 2))
@settings(deadline=None, max_examples=200)
def test_the_sdk_reads_a_stream_cut_anywhere_as_the_reply_that_is_not_streamed(
    reply: ChatReply, places: list[int], keepalives: int
) -> None:
    SPLIT.whole = early(google, ASK, reply, keepalives)
    SPLIT.cuts = places
    stream = CLIENT.models.generate_content_stream(model="gemini-3-pro", contents="hi")
    chunks = [seen(chunk) for chunk in stream]
    assert joined(chunks) == joined([seen(types.GenerateContentResponse.model_validate(google.render(ASK, reply)))])
    assert not any("finishReason" in chunk["candidates"][0] for chunk in chunks[:-1])


@given(replies())
@settings(deadline=None, max_examples=200)
def test_every_framing_of_a_stream_holds_the_same_chunks(reply: ChatReply) -> None:
    plain = b"".join(google.stream(ASK, reply)).decode().split("\n\n")[:-1]
    chunks = [json.loads(event.removeprefix("data: ")) for event in plain]
    assert json.loads(b"".join(google.stream(IN_ARRAY, reply))) == chunks
    wrapped = b"".join(google.stream(IN_WRAPPER, reply)).decode().split("\n\n")[:-1]
    assert [json.loads(event.removeprefix("data: "))["response"] for event in wrapped] == chunks


@given(replies())
@settings(deadline=None, max_examples=200)
def test_an_answer_never_ends_with_thoughts_only_and_never_without_a_part(reply: ChatReply) -> None:
    parts = google.render(ASK, reply)["candidates"][0]["content"]["parts"]
    assert parts and not parts[-1].get("thought")
    if reply.reasoning.strip():
        assert any(part["text"].strip() for part in parts if "text" in part)
        assert reply.tool_calls or parts[-1]["text"].strip()


words = st.sampled_from(["a", "b\n", "é"])
TEXT = words.map(lambda text: {"text": text})
PIXEL = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
FILE = {"fileData": {"fileUri": "gs://b/a.png"}}
SEARCHED = {"toolResponse": {"id": "s"}}
THOUGHT = words.map(lambda text: {"text": text, "thought": True, "thoughtSignature": "c2ln"})
parts = TEXT | st.sampled_from([PIXEL, FILE, SEARCHED])


@st.composite
def conversations(draw: st.DrawFn) -> list[Any]:
    """A conversation that Google would take: calls with ids, in any order, or without, each name's in their order."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": draw(words)}]}]
    made = 0
    for _ in range(draw(st.integers(0, 4))):
        calls = list(range(made, made := made + draw(st.integers(0, 3))))
        with_ids = draw(st.booleans())
        names = {n: draw(st.sampled_from(["read", "write"])) for n in calls}
        ids = {n: {"id": f"c{n}"} if with_ids else {} for n in calls}
        asked = [{"functionCall": {"name": names[n], "args": {"n": n}, **ids[n]}} for n in calls]
        answered = [{"functionResponse": {"name": names[n], "response": {"output": str(n)}, **ids[n]}} for n in calls]
        contents.append({"role": "model", "parts": [*draw(st.lists(TEXT | THOUGHT, max_size=3)), *asked]})
        if with_ids:
            answered = draw(st.permutations(answered))
        shown: list[Any] = [*answered]
        for part in draw(st.lists(parts, min_size=1, max_size=2)):
            shown.insert(draw(st.integers(0, len(shown))), part)
        cut = draw(st.integers(1, len(shown)))
        contents.extend({"role": "user", "parts": run} for run in (shown[:cut], shown[cut:]) if run)
    return contents


def parse(contents: list[Any]) -> tuple[Message, ...] | None:
    try:
        return google.parse(
            Request("POST", "h", "/"), Route("generate", model="m"), {"contents": contents}
        ).chat.messages
    except CallError:
        return None


@given(conversations())
@settings(deadline=None, max_examples=150)
def test_every_call_of_a_conversation_is_answered_once_by_its_own_result_and_no_turn_is_empty(
    contents: list[Any],
) -> None:
    messages = parse(contents)
    assert messages is not None
    check(messages)
    arguments = {c.id: c.arguments for m in messages if isinstance(m, Assistant) for c in m.tool_calls}
    results = {m.call_id: text_of(m.parts) for m in messages if isinstance(m, ToolResult)}
    assert results == {call_id: str(json.loads(text)["n"]) for call_id, text in arguments.items()}


@given(conversations())
@settings(deadline=None, max_examples=150)
def test_a_content_that_is_appended_never_changes_what_came_before(contents: list[Any]) -> None:
    check_prefixes(contents, lambda content: content["role"] == "model", parse)


@given(st.lists(st.sampled_from(["user", "model", "empty", "a", "b", "calls"]), max_size=6))
@settings(deadline=None, max_examples=150)
def test_a_conversation_in_any_order_keeps_the_promises_or_is_refused(kinds: list[str]) -> None:
    content: dict[str, Any] = {
        "user": {"role": "user", "parts": [{"text": "x"}]},
        "model": {"role": "model", "parts": [{"text": "x"}]},
        "empty": {"role": "model", "parts": []},
        **{n: {"role": "user", "parts": [{"functionResponse": {"name": n, "response": {}}}]} for n in ("a", "b")},
        "calls": {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in ("a", "b")]},
    }
    if (messages := parse([content[kind] for kind in kinds])) is not None:
        check(messages)
