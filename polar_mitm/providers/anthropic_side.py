"""The Anthropic API beside messages: token counts, the model list, and the hello that Claude Code says first."""

from collections.abc import Sequence
from urllib.parse import unquote

from polar_mitm.chat import Json
from polar_mitm.providers.base import Ask, ModelCard, Request, Route

# What the API gives for a model whose release date nobody knows.
EPOCH = "1970-01-01T00:00:00Z"


def recognise_side(request: Request, hosts: Sequence[str]) -> Route | None:
    """The route of a path beside messages. Model lists only for clients of this API: OpenAI's have the same path."""
    segments = request.path.split("/")
    match request.method, segments[-2:]:
        case "POST", ["messages", "count_tokens"]:
            return Route("count")
        case "GET" | "HEAD", ["api", "hello"]:
            return Route("fixed")
    if request.method != "GET" or not (request.host in hosts or "anthropic-version" in request.headers):
        return None
    match segments[-2:]:
        case [_, "models"]:
            return Route("models")
        case ["models", name] if name:
            return Route("models", model=unquote(name))
    return None


def count(ask: Ask, tokens: int) -> Json:
    return {"input_tokens": tokens}


def models(route: Route, cards: Sequence[ModelCard]) -> Json:
    if route.model is not None:
        length = next((card.max_model_len for card in cards), None)
        return _model(next((card for card in cards if card.id == route.model), ModelCard(route.model, length)))
    data = [_model(card) for card in cards]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def _model(card: ModelCard) -> Json:
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": EPOCH,
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "capabilities": None,
        "max_input_tokens": card.max_model_len,
        "max_tokens": card.max_model_len,
    }


def fixed(request: Request) -> Json:
    return {}
