"""A NeMo Gym agent whose rollouts are sessions of real coding agents, run by polar's rollout server.

The harness has its own loop and its own tools, so `/run` is all there is. Written for NeMo Gym 0.4 and 0.7.
"""

from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import HTTPException, Request
from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import get_response_json, raise_for_status
from pydantic import ConfigDict, Field, PrivateAttr

from polar_mitm.client.aio import AsyncRolloutClient
from polar_mitm.client.gym import RowRefused, rollout, task_request
from polar_mitm.client.requests import ApiError


class PolarAgentConfig(BaseResponsesAPIAgentConfig):
    rollout_url: str
    token_file: str | None = None
    """File with the rollout server's token; else $POLAR_ROLLOUT_TOKEN."""
    task: dict[str, Any] = Field(default_factory=dict)
    """Fields of polar's TaskRequest, for rows that do not set them in their field `polar`."""
    resources_server: ResourcesServerRef | None = None
    """Whose reward is taken. Null: polar's evaluator gives it."""


class RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class RunResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class PolarAgent(SimpleResponsesAPIAgent):
    config: PolarAgentConfig
    _client: AsyncRolloutClient = PrivateAttr()
    _group: str = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        token = self.config.token_file and Path(self.config.token_file).read_text(encoding="utf-8").strip()
        self._client = AsyncRolloutClient(self.config.rollout_url, token)
        self._group = f"gym-{uuid4().hex[:8]}"

    async def run(self, request: Request, body: RunRequest) -> RunResponse:
        row = body.model_dump() | {
            "responses_create_params": body.responses_create_params.model_dump(exclude_unset=True)
        }
        cookies = await self._seeded(row, request.cookies)
        try:
            asked, not_carried = task_request(row, self.config.task, group=self._group)
            result = await rollout(self._client, asked)
        except RowRefused as error:
            raise HTTPException(422, f"polar: {error}") from error
        except ApiError as error:
            raise HTTPException(error.status, f"polar's rollout server: {error}") from error
        made = row | result | {"not_carried": not_carried}
        if self.config.resources_server and not made["mask_sample"]:
            made |= await self._verified(made, cookies) | {"polar_reward": made["reward"]}
        return RunResponse.model_validate(made)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        raise HTTPException(501, "polar runs whole rollouts: call /run")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        if self.config.resources_server is None:
            return await super().aggregate_metrics(body)
        return AggregateMetrics.model_validate((await self._ask("/aggregate_metrics", body, {}))[0])

    async def _seeded(self, row: dict[str, Any], cookies: Any) -> Any:
        if self.config.resources_server is None:
            return cookies
        return (await self._ask("/seed_session", row, cookies))[1]

    async def _verified(self, made: dict[str, Any], cookies: Any) -> dict[str, Any]:
        """What the resources server says of it; the response and its tokens stay as they are."""
        said, _ = await self._ask("/verify", made, cookies)
        return {name: value for name, value in said.items() if name not in ("response", "responses_create_params")}

    async def _ask(self, path: str, body: Any, cookies: Any) -> tuple[Any, Any]:
        assert self.config.resources_server
        answer = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path=path, json=body, cookies=cookies
        )
        await raise_for_status(answer)
        return await get_response_json(answer), answer.cookies


if __name__ == "__main__":
    PolarAgent.run_webserver()
