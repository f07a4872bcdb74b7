"""The Google API beside generateContent: token counts, model lists, and the answers that a Google login waits for."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from polar_mitm.chat import Json
from polar_mitm.providers.base import ModelCard, Request, Route
from polar_mitm.providers.google_reply import GoogleAsk

MODELS = re.compile(r"(?:.*/)?(?P<version>v1\w*)/models(?:/(?P<model>[^:]+))?")

LOAD_CODE_ASSIST = "v1internal:loadCodeAssist"

# The login's own questions, by the host that is asked.
LOGIN = {"oauth2.googleapis.com": "tokeninfo", "www.googleapis.com": "userinfo"}

TIER = {"id": "standard-tier", "name": "polar", "description": "", "isDefault": True}


def recognise_side(request: Request, hosts: Sequence[str]) -> Route | None:
    """The route of a path beside generateContent. Model lists only for clients of this API: others have that path."""
    name = request.path.rpartition("/")[2]
    if request.method == "POST" and name == LOAD_CODE_ASSIST:
        return Route("fixed")
    if request.method in ("GET", "POST") and LOGIN.get(request.host) == name:
        return Route("fixed")
    match = MODELS.fullmatch(request.path) if request.method == "GET" else None
    if match and (match["version"] != "v1" or _is_googles(request, hosts)):
        return Route("models", model=unquote(match["model"]) if match["model"] else None)
    return None


def _is_googles(request: Request, hosts: Sequence[str]) -> bool:
    return request.host in hosts or "x-goog-api-key" in request.headers or "key" in request.query


def count(ask: GoogleAsk, tokens: int) -> Json:
    # Code Assist wraps the question, and does not wrap this answer.
    return {"totalTokens": tokens}


def models(route: Route, cards: Sequence[ModelCard]) -> Json:
    if route.model is None:
        return {"models": [_model(card) for card in cards]}
    length = next((card.max_model_len for card in cards), None)
    return _model(next((card for card in cards if card.id == route.model), ModelCard(route.model, length)))


def _model(card: ModelCard) -> Json:
    model: Json = {
        "name": f"models/{card.id}",
        "version": "1",
        "displayName": card.id,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    if card.max_model_len is not None:
        model |= {"inputTokenLimit": card.max_model_len, "outputTokenLimit": card.max_model_len}
    return model


def fixed(request: Request) -> Json:
    match request.path.rpartition("/")[2]:
        case "tokeninfo":
            # Google's own login library splits the scope and adds up the seconds.
            return {"scope": "https://www.googleapis.com/auth/cloud-platform", "expires_in": 3599}
        case "userinfo":
            return {"id": "1", "email": "polar@localhost", "verified_email": True}
        case _:
            return {"currentTier": TIER, "allowedTiers": [TIER], "cloudaicompanionProject": "polar"}
