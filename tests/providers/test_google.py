"""Google generateContent: what a request means, and what a reply looks like, down to the official SDK reading it."""

import base64
import json
from typing import Any

import orjson
import pytest
from google import genai
from google.genai import errors, types
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    ChatRequest,
    Image,
    NotCarried,
    Sampling,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Usage,
    User,
    message_wire,
)
from polar_mitm.providers import google, google_contents, google_fields
from polar_mitm.providers.base import Begun, Request, Route
from polar_mitm.providers.google_reply import GoogleAsk
from tests.providers.early import early
from tests.providers.served import replaced, served, size

READ_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read_file", "description": "Reads a file", "parametersJsonSchema": READ_SCHEMA}
WRITE = {"name": "write_file"}
PIXEL = "iVBORw0KGgo="

PLAIN = Route("generate", model="gemini-3-pro", stream=True)
WRAPPED = Route("generate", stream=True)


def parse(body: Any, route: Route = PLAIN, headers: dict[str, str] | None = None) -> GoogleAsk:
    return google.parse(Request("POST", "generativelanguage.googleapis.com", "/", {}, headers or {}), route, body)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str = "read_file", call_id: str | None = None, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args} | ({"id": call_id} if call_id else {})}


def answer(output: str, name: str = "read_file", call_id: str | None = None) -> dict[str, Any]:
    response = {"name": name, "response": {"output": output}}
    return {"functionResponse": response | ({"id": call_id} if call_id else {})}


def chat(*contents: Any, **fields: Any) -> ChatRequest:
    return parse({"contents": list(contents), **fields}).chat


GEMINI_CLI: dict[str, Any] = {
    "contents": [
        user({"text": "This is the Gemini CLI."}, {"text": "Read a.py and b.py"}),
        model(
            {"text": "**Two files**", "thought": True, "thoughtSignature": "c2ln"},
            {"text": "Reading."},
            {**call("read_file", "call_1", path="a.py"), "thoughtSignature": "skip_thought_signature_validator"},
            call("read_file", "call_2", path="b.py", limit=3),
        ),
        user(answer("print(1)", call_id="call_1"), answer("no such file", call_id="call_2")),
    ],
    "systemInstruction": {"role": "user", "parts": [{"text": "You are Gemini CLI."}]},
    "tools": [{"functionDeclarations": [READ, WRITE]}],
    "generationConfig": {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"},
    },
}
GEMINI_CHAT = ChatRequest(
    messages=(
        System("You are Gemini CLI."),
        User((Text("This is the Gemini CLI."), Text("Read a.py and b.py"))),
        Assistant(
            "Reading.",
            "**Two files**",
            (
                ToolCall("call_1", "read_file", '{"path": "a.py"}'),
                ToolCall("call_2", "read_file", '{"path": "b.py", "limit": 3}'),
            ),
        ),
        ToolResult("call_1", (Text("print(1)"),)),
        ToolResult("call_2", (Text("no such file"),)),
    ),
    tools=(Tool("read_file", "Reads a file", READ_SCHEMA), Tool("write_file")),
    sampling=Sampling(temperature=1.0, top_p=0.95, top_k=64),
    thinking=Thinking(enabled=True, effort="high"),
)


def test_a_gemini_cli_request_becomes_this_chat() -> None:
    headers = {"x-gemini-api-privileged-user-id": "u-1", "x-goog-api-key": "secret"}
    assert parse(GEMINI_CLI, headers=headers) == GoogleAsk(
        GEMINI_CHAT, "gemini-3-pro", stream=True, harness_ids={"x-gemini-api-privileged-user-id": "u-1"}
    )


def test_a_code_assist_request_is_the_same_chat_in_a_wrapper() -> None:
    body = {
        "model": "gemini-3-pro",
        "project": "p-1",
        "user_prompt_id": "s-1########0",
        "request": {**GEMINI_CLI, "session_id": "s-1"},
    }
    ask = parse(body, WRAPPED)
    assert ask.chat == GEMINI_CHAT
    assert (ask.model, ask.wrapped) == ("gemini-3-pro", True)
    assert ask.harness_ids == {"user_prompt_id": "s-1########0", "session_id": "s-1"}


def test_snake_case_is_read_like_camel_case() -> None:
    def snake(value: Any) -> Any:
        match value:
            case dict():
                return {google_fields.snake_case(key): snake(inner) for key, inner in value.items()}
            case list():
                return [snake(inner) for inner in value]
            case _:
                return value

    config = {"maxOutputTokens": 7, "stopSequences": ["END"], "seed": 3, "responseMimeType": "application/json"}
    choice = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["read_file"]}}
    image = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    contents = [*GEMINI_CLI["contents"], user(image)]
    camel = {**GEMINI_CLI, "contents": contents, "generationConfig": config, "toolConfig": choice}
    assert snake(camel) != camel
    assert parse(snake(camel)).chat == parse(camel).chat
    assert parse(camel).chat.sampling == Sampling(7, seed=3, stop=("END",))


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", Route("generate", "gemini-3-pro", False, "json-array")),
        ("/v1/models/gemini-3-pro:streamGenerateContent", Route("generate", "gemini-3-pro", True, "json-array")),
        ("/s/ses_1/v1beta/models/org%2Fqwen:streamGenerateContent", Route("generate", "org/qwen", True, "json-array")),
        ("/s/ses_1/v1beta/models/org/qwen-7b:generateContent", Route("generate", "org/qwen-7b", False, "json-array")),
        ("/v1beta/models/qwen:7b:countTokens", Route("count", "qwen:7b")),
        (
            "/v1/projects/p/locations/eu/publishers/google/models/gemini:generateContent",
            Route("generate", "gemini", False, "json-array"),
        ),
        ("/v1beta/tunedModels/mine:generateContent", Route("generate", "mine", False, "json-array")),
        ("/v1internal:streamGenerateContent", Route("generate", None, True, "json-array")),
        ("/v1internal:generateContent", Route("generate", None, False, "json-array")),
        ("/v1beta/models/gemini-3-pro:countTokens", Route("count", "gemini-3-pro")),
        ("/v1internal:countTokens", Route("count")),
        ("/v1internal:loadCodeAssist", Route("fixed")),
        ("/v1internal:onboardUser", None),
        ("/v1internal:retrieveUserQuota", None),
        ("/v1beta/models:generateContent", None),
    ],
)
def test_a_path_says_the_model_and_whether_to_stream(path: str, route: Route | None) -> None:
    assert google.recognise(Request("POST", "h", path)) == route
    assert google.recognise(Request("GET", "h", path)) is None


def test_P103_the_query_says_how_the_stream_is_framed() -> None:
    request = Request("POST", "h", "/v1beta/models/m:streamGenerateContent", {"alt": "sse", "key": "x"})
    assert google.recognise(request) == Route("generate", "m", True, "sse")


# --- conversation -----------------------------------------------------------------------------------------------------


def test_P095_results_without_ids_are_paired_with_calls_of_their_name_in_order() -> None:
    messages = chat(
        user({"text": "hi"}),
        model(call(path="a"), call(path="b"), call("write_file")),
        user(answer("wrote", "write_file"), answer("A"), answer("B")),
    ).messages
    calls = messages[1].tool_calls  # type: ignore[union-attr]  # the second message is the model's
    assert [(made.id, made.arguments) for made in calls] == [
        ("call_1_0", '{"path": "a"}'),
        ("call_1_1", '{"path": "b"}'),
        ("call_1_2", "{}"),
    ]
    assert messages[2:] == (
        ToolResult("call_1_0", (Text("A"),)),
        ToolResult("call_1_1", (Text("B"),)),
        ToolResult("call_1_2", (Text("wrote"),)),
    )


def test_P095_results_with_ids_go_to_their_calls_in_whatever_order_they_come() -> None:
    messages = chat(
        user({"text": "hi"}),
        model(call(call_id="x"), call(call_id="y")),
        user(answer("Y", call_id="y"), answer("X", call_id="x")),
    ).messages
    assert messages[2:] == (ToolResult("x", (Text("X"),)), ToolResult("y", (Text("Y"),)))


def test_P096_a_result_that_names_the_function_as_its_id_still_reaches_the_call() -> None:
    messages = chat(
        user({"text": "hi"}), model(call(call_id="call_7")), user(answer("A", call_id="read_file"))
    ).messages
    assert messages[2] == ToolResult("call_7", (Text("A"),))


def test_P096_ids_of_calls_without_one_do_not_change_when_the_conversation_goes_on() -> None:
    turns = [user({"text": "hi"}), model(call(path="a")), user(answer("A")), model(call(path="b")), user(answer("B"))]
    whole = chat(*turns).messages
    assert chat(*turns[:3]).messages == whole[:3]
    assert [message.call_id for message in whole if isinstance(message, ToolResult)] == ["call_1_0", "call_3_0"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            [user({"text": "hi"}), model(call(path="a")), user({"text": "never mind"})],
            "contents.2: no response to read_file. Please ensure that the number of function response parts is equal",
        ),
        (
            [user({"text": "hi"}), model({"text": "ok"}), user(answer("A"))],
            "contents.2.parts.0.functionResponse: no call of 'read_file' is open. Please ensure that function response",
        ),
        (
            [user({"text": "hi"}), model(call()), user(answer("A"), answer("B"))],
            "contents.2.parts.1.functionResponse: no call of 'read_file' is open.",
        ),
        ([user({"text": "hi"}), model({"text": "ok"}), user()], "contents.2.parts: contents.parts must not be empty"),
    ],
)
def test_a_conversation_that_google_refuses_is_refused_in_its_words(contents: Any, message: str) -> None:
    with pytest.raises(CallError) as caught:
        chat(*contents)
    assert (caught.value.kind, caught.value.message[: len(message)]) == ("invalid_request", message)


def test_a_content_of_the_models_without_anything_in_it_is_no_turn() -> None:
    asked = chat(user({"text": "hi"}), model(), {"role": "model"}, user({"text": "go"}))
    assert asked.messages == (User((Text("hi"), Text("go"))),)


def test_a_user_turn_of_which_nothing_can_be_read_says_so() -> None:
    asked = chat(user({"toolResponse": {"id": "x"}}))
    assert asked.messages == (User((Text(google_contents.LEFT_OUT),)),)
    assert [lost.field for lost in asked.not_carried] == ["contents.*.parts.*.toolResponse"]


@pytest.mark.parametrize(
    "instruction",
    ["Be brief.", {"parts": [{"text": "Be brief."}]}, {"role": "system", "parts": {"text": "Be brief."}}],
)
def test_a_system_instruction_is_read_in_every_form(instruction: Any) -> None:
    asked = parse({"contents": {"parts": {"text": "hi"}}, "systemInstruction": instruction}).chat
    assert asked.messages == (System("Be brief."), User((Text("hi"),)))


def test_a_picture_in_the_system_instruction_is_noted() -> None:
    parts = [{"text": "Top."}, {"inlineData": {"mimeType": "image/png", "data": PIXEL}}]
    asked = chat(user({"text": "hi"}), systemInstruction={"parts": parts})
    assert asked.messages[0] == System("Top.")
    assert asked.not_carried == (NotCarried("systemInstruction.parts.*", "a system prompt has text only"),)


def test_a_file_by_uri_leaves_a_trace_for_the_model_and_the_record() -> None:
    asked = chat(user({"text": "see"}, {"fileData": {"fileUri": "gs://b/a.png", "mimeType": "image/png"}}))
    assert asked.messages == (User((Text("see"), Text(google_contents.UNREADABLE_FILE))),)
    why = "nothing is fetched from the network; a placeholder stands for it"
    assert asked.not_carried == (NotCarried("contents.*.parts.*.fileData", why),)


def test_each_thing_that_could_not_be_read_is_counted_under_its_own_reason() -> None:
    stored = {"fileData": {"fileUri": "gs://b/a.png", "mimeType": "image/png"}}
    pdf, sound = ({"inlineData": {"mimeType": kind, "data": PIXEL}} for kind in ("application/pdf", "audio/wav"))
    answered = answer("ok")
    answered["functionResponse"]["parts"] = [stored, pdf]
    asked = chat(user(stored, pdf, stored, sound, pdf), model(call()), user(answered))
    fetched = "nothing is fetched from the network; a placeholder stands for it"
    part, inside = "contents.*.parts.*", "contents.*.parts.*.functionResponse.parts.*"
    assert {(lost.field, lost.why, lost.times) for lost in asked.not_carried} == {
        (f"{part}.fileData", fetched, 2),
        (f"{part}.inlineData", "application/pdf: the model reads text and images only", 2),
        (f"{part}.inlineData", "audio/wav: the model reads text and images only", 1),
        (f"{inside}.fileData", fetched, 1),
        (f"{inside}.inlineData", "application/pdf: the model reads text and images only", 1),
    }


def test_an_empty_text_part_adds_nothing_to_the_prompt() -> None:
    parts = [{"text": text} for text in ("", "a", "", "b", "")]
    asked = chat(user(*parts), systemInstruction={"parts": parts})
    assert [message_wire(message)["content"] for message in asked.messages] == ["a\n\nb", "a\nb"]


def test_a_user_turn_that_thousands_of_empty_answers_interrupt_is_one_message() -> None:
    (message,) = chat(*[user({"text": "a"}), model()] * 30_000).messages
    assert message == User((Text("a"),) * 30_000)


def test_thousands_of_parallel_calls_are_paired_by_name_and_by_id() -> None:
    number = 20_000
    named = [call(f"f{index % 2}", f"c{index}" if index % 3 else None) for index in range(number)]
    answers = [answer(f"r{index}", f"f{index % 2}", f"c{index}" if index % 3 else None) for index in range(number)]
    asked = chat(user({"text": "hi"}), model(*named), user(*answers))
    assert [message.parts for message in asked.messages[2:] if isinstance(message, ToolResult)] == [
        (Text(f"r{index}"),) for index in range(number)
    ]


def test_calls_that_share_one_id_have_a_result_each() -> None:
    named = [call("f", "same", n=index) for index in range(2)]
    asked = chat(user({"text": "hi"}), model(*named), user(answer("first", "f", "same"), answer("second", "f", "same")))
    assert asked.messages[2:] == (ToolResult("same", (Text("first"),)), ToolResult("call_1_1", (Text("second"),)))


@pytest.mark.parametrize(
    ("config", "thinking"),
    [
        ({}, Thinking()),
        ({"includeThoughts": True}, Thinking()),
        ({"thinkingBudget": 0}, Thinking(False)),
        ({"thinkingBudget": -1, "includeThoughts": True}, Thinking(True)),
        ({"thinkingBudget": 512}, Thinking(True, None, 512)),
        ({"thinkingLevel": "MINIMAL"}, Thinking(True, "minimal")),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, Thinking()),
    ],
)
def test_how_much_to_think_is_carried(config: Any, thinking: Thinking) -> None:
    asked = chat(user({"text": "hi"}), generationConfig={"thinkingConfig": config})
    assert (asked.thinking, asked.not_carried) == (thinking, ())


def test_a_thinking_budget_below_minus_one_is_refused() -> None:
    with pytest.raises(CallError, match=r"^generationConfig\.thinkingConfig\.thinkingBudget: must be at least -1"):
        chat(user({"text": "hi"}), generationConfig={"thinkingConfig": {"thinkingBudget": -2}})


def test_P001_function_results_come_first_then_one_user_message_with_the_other_parts() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    messages = chat(
        user({"text": "hi"}), model(call(), call()), user({"text": "see"}, answer("A"), image), user(answer("B"))
    ).messages
    assert messages[2:] == (
        ToolResult("call_1_0", (Text("A"),)),
        ToolResult("call_1_1", (Text("B"),)),
        User((Text("see"), Image(f"data:image/png;base64,{PIXEL}"))),
    )


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "hello\n"}, "hello\n"),
        ({"error": "no such file"}, "no such file"),
        ({"result": "x"}, "x"),
        ({"output": ""}, ""),
        ({"output": {"lines": ["é"]}}, '{"output": {"lines": ["é"]}}'),
        ({"output": "x", "exitCode": 1}, '{"output": "x", "exitCode": 1}'),
        ({}, "{}"),
        (None, ""),
    ],
)
def test_a_function_result_of_one_text_is_that_text_and_any_other_is_json(response: Any, text: str) -> None:
    part = {"functionResponse": {"name": "read_file", "response": response}}
    assert chat(user({"text": "hi"}), model(call()), user(part)).messages[2] == ToolResult("call_1_0", (Text(text),))


def test_P004_an_image_inside_a_function_result_is_kept() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    part = {"functionResponse": {"name": "read_file", "response": {"output": "seen"}, "parts": [image]}}
    assert chat(user({"text": "hi"}), model(call()), user(part)).messages[2] == ToolResult(
        "call_1_0", (Text("seen"), Image(f"data:image/png;base64,{PIXEL}"))
    )


def test_the_url_safe_alphabet_of_googles_sdk_becomes_the_alphabet_of_data_urls() -> None:
    data = base64.urlsafe_b64encode(bytes(range(240, 256))).decode()
    assert "-" in data or "_" in data
    (message,) = chat(user({"inlineData": {"mimeType": "image/jpeg", "data": data}})).messages
    assert message == User((Image(f"data:image/jpeg;base64,{base64.b64encode(bytes(range(240, 256))).decode()}"),))


def test_a_text_file_is_read_as_text() -> None:
    data = base64.urlsafe_b64encode("größe?>".encode()).decode()
    asked = chat(user({"inlineData": {"mimeType": "text/plain", "data": data}}))
    assert (asked.messages, asked.not_carried) == ((User((Text("größe?>"),)),), ())


def test_a_file_that_is_no_image_leaves_a_trace_for_the_model_and_the_record() -> None:
    asked = chat(user({"text": "read"}, {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}}))
    assert asked.messages == (User((Text("read"), Text(google_contents.UNREADABLE_FILE))),)
    assert [lost.field for lost in asked.not_carried] == ["contents.*.parts.*.inlineData"]


@pytest.mark.parametrize("signature", [None, "c2ln", "skip_thought_signature_validator"])
def test_P107_a_thought_signature_is_accepted_and_never_put_into_the_prompt(signature: Any) -> None:
    parts = [{**call(), "thoughtSignature": signature}, {"text": "", "thoughtSignature": signature}]
    made = Assistant("", "", (ToolCall("call_1_0", "read_file", "{}"),))
    assert chat(user({"text": "hi"}), model(*parts), user(answer("A"))).messages[1] == made


def test_a_text_that_comes_back_in_the_pieces_it_was_streamed_in_joins_without_a_seam() -> None:
    pieces = [model({"text": "wri"}, {"text": "ting"}), model({"text": "."})]
    assert chat(user({"text": "hi"}), *pieces, user({"text": "go"})).messages[1] == Assistant("writing.")


def test_parts_of_googles_server_tools_are_left_out_and_noted() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    asked = chat(user({"text": "hi"}), model(code, {"text": "one"}), user({"text": "go"}))
    assert asked.messages[1] == Assistant("one")
    assert [lost.field for lost in asked.not_carried] == ["contents.*.parts.*.executableCode"]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_P104_schemas_are_read_under_all_their_names_and_an_empty_one_stays_empty() -> None:
    declarations = [
        {"name": "a", "parametersJsonSchema": READ_SCHEMA},
        {"name": "b", "parameters_json_schema": READ_SCHEMA},
        {
            "name": "c",
            "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}, "required": ["path"]},
        },
        {"name": "d", "parametersJsonSchema": {}},
        {"name": "e"},
    ]
    tools = chat(user({"text": "hi"}), tools=[{"functionDeclarations": declarations}]).tools
    assert [tool.parameters for tool in tools] == [
        READ_SCHEMA,
        READ_SCHEMA,
        READ_SCHEMA,
        {},
        {"type": "object", "properties": {}},
    ]


def test_googles_schema_words_become_those_of_json_schema_at_every_depth() -> None:
    schema = {
        "type": "OBJECT",
        "propertyOrdering": ["type", "list"],
        "properties": {
            "type": {"type": "STRING", "enum": ["A", "B"], "nullable": True},
            "list": {"type": "ARRAY", "items": {"type": "INTEGER", "nullable": True}, "minItems": "1", "max_items": 4},
            "either": {"anyOf": [{"type": "NUMBER"}, {"type": "OBJECT", "properties": {"x": {"type": "BOOLEAN"}}}]},
            "many": {"type": ["STRING", "NULL"]},
            "loose": {"any_of": [{"type": "STRING"}], "nullable": True, "type": "TYPE_UNSPECIFIED"},
        },
        "required": ["type"],
    }
    declaration = {"name": "f", "parameters": schema}
    assert chat(user({"text": "hi"}), tools=[{"functionDeclarations": [declaration]}]).tools[0].parameters == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["A", "B", None]},
            "list": {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 1, "maxItems": 4},
            "either": {"anyOf": [{"type": "number"}, {"type": "object", "properties": {"x": {"type": "boolean"}}}]},
            "many": {"type": ["string", "null"]},
            "loose": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["type"],
    }


def test_P011_a_hosted_tool_that_is_only_listed_is_left_out_and_noted() -> None:
    asked = chat(
        user({"text": "hi"}), tools=[{"googleSearch": {}}, {"functionDeclarations": [WRITE], "urlContext": {}}]
    )
    assert asked.tools == (Tool("write_file"),)
    assert [lost.field for lost in asked.not_carried] == ["tools.*.googleSearch", "tools.*.urlContext"]


@pytest.mark.parametrize(
    ("config", "names", "wanted"),
    [
        ({"mode": "AUTO"}, ["read_file", "write_file"], ToolChoice()),
        ({}, ["read_file", "write_file"], ToolChoice()),
        ({"mode": "NONE"}, ["read_file", "write_file"], ToolChoice("none")),
        ({"mode": "ANY"}, ["read_file", "write_file"], ToolChoice("required")),
        ({"mode": "VALIDATED"}, ["read_file", "write_file"], ToolChoice()),
        ({"mode": "ANY", "allowedFunctionNames": ["read_file"]}, ["read_file"], ToolChoice("named", "read_file")),
        (
            {"mode": "ANY", "allowedFunctionNames": ["write_file", "read_file"]},
            ["read_file", "write_file"],
            ToolChoice("required"),
        ),
    ],
)
def test_every_function_calling_mode_has_its_counterpart(config: Any, names: list[str], wanted: ToolChoice) -> None:
    asked = chat(
        user({"text": "hi"}),
        tools=[{"functionDeclarations": [READ, WRITE]}],
        toolConfig={"functionCallingConfig": config},
    )
    assert [tool.name for tool in asked.tools] == names
    assert asked.tool_choice == wanted
    left_out = {"read_file", "write_file"} - set(names)
    assert {lost.field for lost in asked.not_carried} == {f"tools.{name}" for name in left_out}


# --- other fields -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "schema"),
    [
        ({"responseMimeType": "application/json", "responseJsonSchema": READ_SCHEMA}, READ_SCHEMA),
        ({"responseMimeType": "application/json", "_responseJsonSchema": READ_SCHEMA}, READ_SCHEMA),
        (
            {
                "responseMimeType": "application/json",
                "responseSchema": {"type": "ARRAY", "items": {"type": "STRING"}},
            },
            {"type": "array", "items": {"type": "string"}},
        ),
        ({"responseMimeType": "application/json"}, {}),
        ({"responseMimeType": "text/plain"}, None),
        ({}, None),
    ],
)
def test_a_structured_output_schema_is_carried_under_all_its_names(config: Any, schema: Any) -> None:
    asked = chat(user({"text": "hi"}), generationConfig=config)
    assert asked.json_schema == schema
    assert asked.not_carried == ()


def test_a_choice_of_words_is_answered_in_plain_text() -> None:
    schema = {"type": "STRING", "enum": ["Strings", "Brass"]}
    asked = chat(user({"text": "hi"}), generationConfig={"responseMimeType": "text/x.enum", "responseSchema": schema})
    assert (asked.choices, asked.json_schema, asked.not_carried) == (("Strings", "Brass"), None, ())
    as_json = {"responseMimeType": "application/json", "responseSchema": schema}
    asked = chat(user({"text": "hi"}), generationConfig=as_json)
    assert (asked.choices, asked.json_schema) == ((), {"type": "string", "enum": ["Strings", "Brass"]})


def test_a_function_is_declared_once() -> None:
    groups = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}, {"functionDeclarations": [{"name": "a"}]}]
    with pytest.raises(CallError, match="Duplicate function declaration found: a") as caught:
        chat(user({"text": "hi"}), tools=groups)
    assert caught.value.kind == "invalid_request"


def test_sampling_is_carried_and_what_has_no_counterpart_is_noted() -> None:
    config = {
        "temperature": 0,
        "topP": 0.5,
        "topK": 40.0,
        "maxOutputTokens": 100,
        "stopSequences": ["END"],
        "seed": 5,
        "presencePenalty": 0.5,
        "frequencyPenalty": -0.5,
        "candidateCount": 2,
        "responseModalities": ["AUDIO"],
        "responseLogprobs": False,
    }
    asked = chat(
        user({"text": "hi"}),
        generationConfig=config,
        safetySettings=[{"category": "X"}],
        labels={"a": "b"},
        store=False,
    )
    assert asked.sampling == Sampling(100, 0.0, 0.5, 40, 0.5, -0.5, 5, ("END",))
    assert [lost.field for lost in asked.not_carried] == [
        "safetySettings",
        "labels",
        "generationConfig.responseModalities",
        "generationConfig.candidateCount",
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "contents: contents are required"),
        ({"contents": "hi"}, "contents: expected a list, got a string"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents.0.role: unknown role 'system'"),
        ({"contents": [user({"text": "a"}, {})]}, "contents.0.parts.1: a part needs one of"),
        ({"contents": [user({"text": 7})]}, "contents.0.parts.0.text: expected a string, got a number"),
        (
            {"contents": [user({"text": "a"}), model({"functionCall": {"name": "f", "args": []}})]},
            "contents.1.parts.0.functionCall.args: expected an object, got a list",
        ),
        ({"contents": [user()], "cachedContent": "cachedContents/1"}, "cachedContent: cached content is not served"),
        (
            {"contents": [user({"text": "a"})], "generationConfig": {"topK": 1.5}},
            "generationConfig.topK: expected an integer, got a number",
        ),
        (
            {"contents": [user()], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "toolConfig.functionCallingConfig.mode: a call is required, but no function is declared",
        ),
        (
            {
                "contents": [user()],
                "tools": [{"googleSearch": {}}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}},
            },
            "toolConfig.functionCallingConfig.allowedFunctionNames: not declared: x",
        ),
    ],
)
def test_a_wrong_request_is_refused_by_the_path_of_the_field_at_fault(wrong: Any, message: str) -> None:
    with pytest.raises(CallError) as caught:
        parse(wrong)
    assert caught.value.kind == "invalid_request"
    assert caught.value.message.startswith(message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from([PLAIN, WRAPPED]))
@settings(deadline=None)
def test_any_json_is_parsed_or_refused_with_a_call_error(value: Any, route: Route) -> None:
    try:
        parse(value, route)
    except CallError as error:
        assert error.kind == "invalid_request"


def test_proto_json_may_write_a_number_as_a_string() -> None:
    numbers = {"maxOutputTokens": "64", "temperature": "0.5", "topK": "40", "seed": "-7", "topP": "1"}
    asked = chat(user({"text": "hi"}), generationConfig={**numbers, "thinkingConfig": {"thinkingBudget": "-1"}})
    assert asked.sampling == Sampling(max_tokens=64, temperature=0.5, top_k=40, seed=-7, top_p=1.0)
    assert asked.thinking == Thinking(True)
    for wrong in ("", "1e3", "6 4", "٣", "9" * 30):
        with pytest.raises(CallError, match="expected an integer"):
            chat(user({"text": "hi"}), generationConfig={"maxOutputTokens": wrong})


def test_a_schema_nested_deeper_than_any_stack_is_refused() -> None:
    schema: Any = {"type": "STRING"}
    for _ in range(5000):
        schema = {"type": "ARRAY", "items": schema}
    with pytest.raises(CallError, match="nested deeper than 200 levels"):
        chat(user({"text": "hi"}), tools=[{"functionDeclarations": [{"name": "f", "parameters": schema}]}])


FULL: dict[str, Any] = {
    **GEMINI_CLI,
    "contents": [*GEMINI_CLI["contents"], user({"inlineData": {"mimeType": "image/png", "data": PIXEL}})],
    "tools": [{"functionDeclarations": [READ, {"name": "w", "parameters": {"type": "OBJECT", "nullable": True}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["w"]}},
    "generationConfig": {"topK": 1, "stopSequences": ["a"], "responseSchema": {"type": "STRING", "enum": ["x"]}},
}


@given(st.integers(0, size(FULL) - 1), json_values)
@settings(deadline=None, max_examples=400)
def test_a_request_with_any_one_value_replaced_is_parsed_or_refused_with_a_call_error(at: int, value: Any) -> None:
    try:
        ask = parse(replaced(FULL, at, value))
    except CallError as error:
        assert error.kind == "invalid_request"
        assert error.message
    else:
        assert isinstance(ask, GoogleAsk)


# --- replies ----------------------------------------------------------------------------------------------------------

ASK = GoogleAsk(ChatRequest(()), "gemini-3-pro", stream=True)
IN_ARRAY = GoogleAsk(ChatRequest(()), "gemini-3-pro", stream=True, framing="json-array")
IN_WRAPPER = GoogleAsk(ChatRequest(()), "gemini-3-pro", stream=True, wrapped=True)


def a_reply(
    text: str = "",
    reasoning: str = "",
    tool_calls: tuple[ToolCall, ...] = (),
    finish: Any = "stop",
    usage: Usage | None = None,
) -> ChatReply:
    usage = usage or Usage(prompt_tokens=1200, completion_tokens=34, cached_tokens=1000, reasoning_tokens=10)
    return ChatReply("00ff", 1764460800, text, reasoning, tool_calls, finish, usage)


CALLS = (
    ToolCall("call_00ff00", "write_file", '{"text": "hé",  "lines":5}'),
    ToolCall("call_00ff01", "read_file", '{"path": "a.py"}'),
)
REPLY = a_reply("Writing.", "Think.", CALLS, "tool_calls")
RENDERED: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "parts": [
                    {"text": "Think.", "thought": True},
                    {"text": "Writing."},
                    {"functionCall": {"id": "call_00ff00", "name": "write_file", "args": {"text": "hé", "lines": 5}}},
                    {"functionCall": {"id": "call_00ff01", "name": "read_file", "args": {"path": "a.py"}}},
                ],
                "role": "model",
            },
            "index": 0,
            "finishReason": "STOP",
        }
    ],
    "modelVersion": "gemini-3-pro",
    "responseId": "00ff",
    "usageMetadata": {
        "promptTokenCount": 1200,
        "candidatesTokenCount": 24,
        "totalTokenCount": 1234,
        "thoughtsTokenCount": 10,
    },
}
REPLIES = [
    REPLY,
    a_reply(),
    a_reply("é" * 40),
    a_reply(tool_calls=CALLS),
    a_reply(reasoning="Hm."),
    a_reply("Hi", "Hm."),
]


def test_a_reply_is_rendered_as_this_response() -> None:
    assert google.render(ASK, REPLY) == RENDERED
    assert google.render(IN_WRAPPER, REPLY) == {"response": RENDERED, "traceId": "00ff"}


def test_usage_without_thoughts_does_not_mention_them() -> None:
    usage = google.render(ASK, a_reply("Hi", usage=Usage(7, 3)))["usageMetadata"]
    assert usage == {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}


def parts_of(response: Any) -> list[Any]:
    parts: list[Any] = response["candidates"][0]["content"]["parts"]
    return parts


def sse_chunks(ask: GoogleAsk, reply: ChatReply) -> list[Any]:
    lines = b"".join(google.stream(ask, reply)).decode().split("\n\n")
    assert lines.pop() == ""
    return [orjson.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("reply", REPLIES)
def test_the_chunks_of_a_stream_hold_the_parts_of_the_whole_reply(reply: ChatReply) -> None:
    whole = google.render(ASK, reply)
    chunks = sse_chunks(ASK, reply)
    streamed = [part for chunk in chunks for part in parts_of(chunk)]
    assert [part for part in streamed if part != {"text": ""}] == [
        part for part in parts_of(whole) if part != {"text": ""}
    ]
    assert {chunk["responseId"] for chunk in chunks} == {"00ff"}


def test_P099_all_calls_of_a_turn_are_in_one_chunk() -> None:
    assert [[next(iter(part)) for part in parts_of(chunk)] for chunk in sse_chunks(ASK, REPLY)] == [
        ["text"],
        ["text"],
        ["functionCall", "functionCall"],
    ]


@pytest.mark.parametrize("reply", REPLIES)
def test_P100_the_last_chunk_and_no_other_has_the_finish_reason_and_the_usage(reply: ChatReply) -> None:
    *early, last = sse_chunks(ASK, reply)
    whole = google.render(ASK, reply)
    assert last["candidates"][0]["finishReason"] == "STOP"
    assert last["usageMetadata"] == whole["usageMetadata"]
    assert not any("finishReason" in chunk["candidates"][0] or "usageMetadata" in chunk for chunk in early)


def test_P101_an_answer_of_thoughts_alone_is_shown_as_text() -> None:
    assert parts_of(google.render(ASK, a_reply(reasoning="Only thoughts."))) == [{"text": "Only thoughts."}]
    assert parts_of(sse_chunks(ASK, a_reply(reasoning="Only thoughts."))[0]) == [{"text": "Only thoughts."}]
    assert parts_of(google.render(ASK, a_reply("\n\n", "Hm."))) == [{"text": "Hm.\n\n"}]


@pytest.mark.parametrize("reply", REPLIES)
def test_P103_without_sse_the_same_chunks_form_a_json_array_also_after_keepalives(reply: ChatReply) -> None:
    framed = early(google, IN_ARRAY, reply, 3)
    assert json.loads(framed) == sse_chunks(ASK, reply)
    assert google.stream_type(IN_ARRAY) == "application/json"
    assert google.stream_type(ASK) == "text/event-stream"


def test_every_chunk_of_a_code_assist_stream_is_wrapped() -> None:
    assert [chunk["response"] for chunk in sse_chunks(IN_WRAPPER, REPLY)] == sse_chunks(ASK, REPLY)


@pytest.mark.parametrize("reply", REPLIES)
def test_P137_a_stream_has_no_line_that_gemini_cli_breaks_on(reply: ChatReply) -> None:
    framed = early(google, ASK, reply, 2)
    assert {line[:6] for line in framed.decode().split("\n")} == {"", "data: "}


@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", '{"a": NaN}'])
def test_P032_a_call_without_a_json_object_is_a_call_that_the_harness_can_answer(arguments: str) -> None:
    rendered = google.render(ASK, a_reply(tool_calls=(ToolCall("call_1", "read_file", arguments),)))
    marked = {"functionCall": {"id": "call_1", "name": "read_file", "args": {"INVALID_JSON": arguments}}}
    assert parts_of(rendered) == [marked]
    (made,) = chat(user({"text": "hi"}), model(marked), user(answer("bad args", call_id="call_1"))).messages[1:2]
    assert made == Assistant("", "", (ToolCall("call_1", "read_file", json.dumps({"INVALID_JSON": arguments})),))


@pytest.mark.parametrize("arguments", ["", "null"])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    rendered = google.render(ASK, a_reply(tool_calls=(ToolCall("call_1", "read_file", arguments),)))
    assert parts_of(rendered) == [{"functionCall": {"id": "call_1", "name": "read_file", "args": {}}}]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("length", "MAX_TOKENS"),
        ("content_filter", "SAFETY"),
        ("abort", "OTHER"),
    ],
)
def test_every_finish_reason_has_its_word(finish: str, reason: str) -> None:
    assert google.render(ASK, a_reply("Hi", finish=finish))["candidates"][0]["finishReason"] == reason


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        ("invalid_request", 400, "INVALID_ARGUMENT"),
        ("unauthorized", 401, "UNAUTHENTICATED"),
        ("not_found", 404, "NOT_FOUND"),
        ("too_large", 413, "INVALID_ARGUMENT"),
        ("unsupported_encoding", 415, "INVALID_ARGUMENT"),
        ("overloaded", 503, "UNAVAILABLE"),
        ("engine", 500, "INTERNAL"),
        ("timeout", 504, "DEADLINE_EXCEEDED"),
        ("no_model", 404, "NOT_FOUND"),
        ("internal", 500, "INTERNAL"),
    ],
)
def test_every_error_has_its_status_and_word(kind: Any, status: int, word: str) -> None:
    wanted = {"error": {"code": status, "message": "m", "status": word}}
    assert google.error(CallError(kind, "m")) == (status, wanted)
    event = b"data: " + orjson.dumps(wanted) + b"\n\n"
    assert google.stream_error(ASK, CallError(kind, "m"), Begun("b", 1), 1) == event
    assert json.loads(early(google, IN_ARRAY, CallError(kind, "m"), 2)) == [wanted]
    in_wrapper = google.stream_error(IN_WRAPPER, CallError(kind, "m"), Begun("b", 1), 1).removeprefix(b"data: ")
    assert json.loads(in_wrapper) == {"response": wanted}


def test_a_full_context_is_told_in_the_words_that_clients_look_for() -> None:
    status, told = google.error(CallError("context_overflow", "5000 tokens > 4096 maximum"))
    assert (status, told["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert told["error"]["message"] == (
        "The input token count exceeds the maximum number of tokens allowed: 5000 tokens > 4096 maximum"
    )


# --- the official SDK -------------------------------------------------------------------------------------------------

TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="read_file",
            description="Reads a file",
            parameters=types.Schema(
                type=types.Type.OBJECT,
                properties={"path": types.Schema(type=types.Type.STRING, nullable=True)},
                required=["path"],
            ),
        )
    ]
)
CONFIG = types.GenerateContentConfig(system_instruction="Be brief.", temperature=0.5, top_k=8, tools=[TOOL])


# The one warning let through is about how the SDK itself uses aiohttp.
NO_WARNINGS = pytest.mark.filterwarnings("error", "ignore:Inheritance class AiohttpClientSession:DeprecationWarning")


def client(url: str) -> genai.client.AsyncClient:
    return genai.Client(api_key="x", http_options=types.HttpOptions(base_url=url)).aio


def seen(response: types.GenerateContentResponse) -> Any:
    return response.model_dump(mode="json", exclude_none=True, by_alias=True, exclude={"sdk_http_response"})


@NO_WARNINGS
async def test_the_sdk_reads_a_json_reply_as_it_was_rendered() -> None:
    async with served(google, REPLY) as server, client(server.url) as sdk:
        response = await sdk.models.generate_content(model="gemini-3-pro", contents="hi", config=CONFIG)
    assert seen(response) == RENDERED
    (ask,) = server.asks
    assert ask.chat == ChatRequest(
        messages=(System("Be brief."), User((Text("hi"),))),
        tools=(
            Tool(
                "read_file",
                "Reads a file",
                {"type": "object", "properties": {"path": {"type": ["string", "null"]}}, "required": ["path"]},
            ),
        ),
        sampling=Sampling(temperature=0.5, top_k=8),
    )


@NO_WARNINGS
@pytest.mark.parametrize("reply", REPLIES)
async def test_the_sdk_reads_a_stream_cut_at_every_byte_as_it_was_sent(reply: ChatReply) -> None:
    async with served(google, reply) as server, client(server.url) as sdk:
        stream = await sdk.models.generate_content_stream(model="gemini-3-pro", contents="hi", config=CONFIG)
        chunks = [seen(chunk) async for chunk in stream]
    assert chunks == sse_chunks(ASK, reply)
    assert server.paths == ["/v1/models/gemini-3-pro:streamGenerateContent?alt=sse"]


@NO_WARNINGS
async def test_a_second_turn_by_the_sdk_gives_back_the_calls_that_it_was_sent() -> None:
    reply = a_reply("Reading.", "Think.", CALLS[1:])
    async with served(google, reply, a_reply("Done.")) as server, client(server.url) as sdk:
        chat_ = sdk.chats.create(model="gemini-3-pro", config=CONFIG)
        await chat_.send_message("hi")
        picture = types.Part.from_bytes(data=bytes(range(240, 256)), mime_type="image/png")
        result = types.Part.from_function_response(name="read_file", response={"result": "a"})
        second = await chat_.send_message([result, picture])
    assert second.text == "Done."
    # The result had no id, and the picture came in the URL-safe alphabet.
    assert server.asks[1].chat.messages[2:] == (
        Assistant("Reading.", "Think.", CALLS[1:]),
        ToolResult("call_00ff01", (Text("a"),)),
        User((Image(f"data:image/png;base64,{base64.b64encode(bytes(range(240, 256))).decode()}"),)),
    )


@NO_WARNINGS
async def test_the_sdk_raises_the_error_that_ends_a_stream() -> None:
    async with served(google, CallError("overloaded", "no room")) as server, client(server.url) as sdk:
        stream = await sdk.models.generate_content_stream(model="gemini-3-pro", contents="hi")
        with pytest.raises(errors.ServerError, match="no room"):
            async for _ in stream:
                pass


@NO_WARNINGS
async def test_the_sdk_raises_its_own_class_for_an_error_reply() -> None:
    async with served(google, CallError("invalid_request", "contents: no")) as server, client(server.url) as sdk:
        with pytest.raises(errors.ClientError, match="contents: no") as caught:
            await sdk.models.generate_content(model="gemini-3-pro", contents="hi")
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
