"""Ask the agent server that `polar gym init` wrote to run rows, as NeMo Gym's collector does.

Runs in the environment of the loader `nemo-gym`: run_polar_agent.py ROOT URL TOKEN_FILE ROWS. The agent's
configuration is the written one, with the rollout server at URL and its token. A row with a number as `judge` goes to a
second agent, whose resources server, played here, gives that as the reward. Prints, as JSON, what came of each row:
status, body, and the ids that Gym's own models read in it.
"""

import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

warnings.simplefilter("ignore")

from fastapi.testclient import TestClient  # noqa: E402
from nemo_gym.base_resources_server import BaseVerifyResponse  # noqa: E402
from nemo_gym.openai_utils import TokenIDLogProbMixin  # noqa: E402
from nemo_gym.server_utils import ServerClient  # noqa: E402
from nemo_gym.token_id_capture.builder import assert_prefix_contiguity  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

root, url, token_file, rows = sys.argv[1:]

sys.path.insert(0, f"{root}/responses_api_agents/polar_agent")
from app import PolarAgent, PolarAgentConfig  # noqa: E402

written = OmegaConf.load(f"{root}/responses_api_agents/polar_agent/configs/polar_agent.yaml")
fields = OmegaConf.to_container(written.polar_agent.responses_api_agents.polar_agent)
fields |= {"host": "127.0.0.1", "port": 1, "name": "polar_agent", "rollout_url": url, "token_file": token_file}
JUDGE = {"resources_server": {"type": "resources_servers", "name": "judge"}}
COOKIES = {"session": "of the judge"}


class Answer:
    ok = True
    cookies = COOKIES

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said

    async def read(self) -> bytes:
        return json.dumps(self.said).encode()


async def judge(server_name: str, url_path: str, json: dict[str, Any], cookies: dict[str, str]) -> Answer:
    assert server_name == "judge"
    if url_path == "/seed_session":
        return Answer({})
    assert (url_path, cookies) == ("/verify", COOKIES)
    return Answer({"reward": json["judge"], "response": None, "judged": len(json["response"]["output"])})


def agent(**more: Any) -> TestClient:
    client = MagicMock(spec=ServerClient)
    client.post = judge
    made = PolarAgent(config=PolarAgentConfig.model_validate(fields | more), server_client=client)
    return TestClient(made.setup_webserver(), raise_server_exceptions=False)


def ask(line: str) -> dict[str, Any]:
    row = json.loads(line)
    answer = (judged if "judge" in row else plain).post("/run", json=row)
    body, tokens = answer.json(), []
    if answer.status_code == 200:
        assert_prefix_contiguity(body["response"])
        output = BaseVerifyResponse.model_validate(body).response.output
        tokens = [item.generation_token_ids for item in output if isinstance(item, TokenIDLogProbMixin)]
    return {"status": answer.status_code, "body": body, "tokens": tokens}


with agent() as plain, agent(**JUDGE) as judged, ThreadPoolExecutor() as threads:
    found = list(threads.map(ask, Path(rows).read_text(encoding="utf-8").splitlines()))
    refused = plain.post("/v1/responses", json={"input": "hi"}).status_code
json.dump({"rows": found, "responses": refused}, sys.stdout)
