"""The official SDKs know the id of each request: that of its call on the record, or one of its own."""

import pytest
from anthropic import BadRequestError as AnthropicBadRequest
from openai import BadRequestError as OpenAiBadRequest

from tests.conformance import test_anthropic, test_openai_chat, test_openai_responses
from tests.conformance.sampled import HELLO, WARNINGS, last
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import JSON_ASKS

pytestmark = pytest.mark.filterwarnings(*WARNINGS)


@pytest.mark.parametrize("grace_s", [10, 0], ids=["at once", "after early bytes"])
async def test_anthropics(grace_s: float, stage: Staged) -> None:
    reply = Reply("Hello.", delay_s=0.05)
    async with stage(reply, grace_s=grace_s, keepalive_s=0.02) as on, test_anthropic.sdk(on) as client:
        message = await client.messages.create(**test_anthropic.ASKED)
        assert message._request_id == f"req_{last(on).id}"
        async with client.messages.stream(**test_anthropic.ASKED) as stream:
            await stream.until_done()
            assert stream.request_id == f"req_{last(on).id}"
        with pytest.raises(AnthropicBadRequest) as raised:
            await client.messages.create(**{**test_anthropic.ASKED, "messages": []})
        assert raised.value.request_id
        assert raised.value.request_id.startswith("req_")
        assert isinstance(raised.value.body, dict)
        assert raised.value.body["request_id"] == raised.value.request_id


async def test_openais(stage: Staged) -> None:
    async with stage(HELLO) as on, test_openai_chat.sdk(on) as client:
        completion = await client.chat.completions.create(**test_openai_chat.ASKED)
        assert completion._request_id == f"req_{last(on).id}"
        response = await client.responses.create(**test_openai_responses.ASKED)
        assert response._request_id == f"req_{last(on).id}"
        with pytest.raises(OpenAiBadRequest) as raised:
            await client.responses.create(model="gpt-9", input=[])
        assert raised.value.request_id
        assert raised.value.request_id.startswith("req_")


async def test_no_two_requests_have_one_id_and_google_has_none(stage: Staged) -> None:
    async with stage(HELLO) as on:
        answers = [await on.post(ask) for ask in JSON_ASKS for _ in range(2)]
    ids = [answer.headers.get("request-id") or answer.headers.get("x-request-id") for answer in answers]
    assert ids[-2:] == [None, None]
    assert len({*ids[:-2]}) == len(ids) - 2
