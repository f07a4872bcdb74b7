"""What an engine is and can do, and why one cannot be used. How that is found out is `probe`'s business."""

from dataclasses import dataclass

from polar_mitm.errors import NotReady
from polar_mitm.prompts import Tokens


class EngineNotReady(NotReady):
    """The engine cannot be used. The message names the URL and the mend."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"engine at {url}: {reason}")
        self.url = url
        self.reason = reason


class EngineUnreachable(EngineNotReady):
    """Nothing answers there, or nothing that is a model server."""


class EngineUnfit(EngineNotReady):
    """It answers, but it has no usable model, refuses polar's key, or gives no token ids and log-probabilities."""


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What the engine says of itself, and what one sampled token showed."""

    url: str
    model: str
    max_model_len: int | None
    """The window: prompt and answer together, in tokens."""
    engine_version: str | None
    logprobs_mode: str | None
    """`raw_logprobs` or `processed_logprobs` (after temperature and filters); None where one token could not tell."""
    template_hash: str | None = None
    tokenizer_hash: str | None = None
    """vLLM gives neither over HTTP (0.32)."""
    not_exact: str | None = "was not asked for its token routes"
    """Why prompts cannot go to it as token ids, in words that go on from "the engine"; None where they can."""

    @property
    def exact(self) -> bool:
        return self.not_exact is None

    def tokens(self, wanted: Tokens | None) -> tuple[Tokens, str | None]:
        """How prompts are to go to this engine, `exact` where nobody wants otherwise and it offers that; and why they
        do not, where nobody asked for messages. EngineUnfit when `exact` is wanted and not offered."""
        if wanted == "exact" and self.not_exact is not None:
            raise EngineUnfit(self.url, f"prompts of token ids are asked for, but it {self.not_exact}")
        if wanted is not None:
            return wanted, None
        return ("exact", None) if self.exact else ("chat", f"the engine {self.not_exact}")
