"""The provider APIs that polar speaks: one module each, listed in PROVIDERS."""

import re
from typing import Final

from polar_mitm.providers import anthropic, google, openai_chat, openai_responses
from polar_mitm.providers.base import Ask, Begun, Provider, Request, Route

# In the order in which they are asked for a path: Anthropic and Google take a model list for theirs only if the client
# says so, OpenAI Chat takes the rest.
PROVIDERS: tuple[Provider, ...] = (anthropic, google, openai_chat, openai_responses)

GOOGLE_PATH: Final = re.compile(r"/v1(alpha|beta|internal)(?!/openai/)[/:]")
"""Its key may be in the query or be a login's; below `openai/` Google speaks OpenAI's API."""

__all__ = ["PROVIDERS", "Ask", "Begun", "Provider", "Request", "Route", "recognise", "speaker"]


def recognise(request: Request) -> tuple[Provider, Route] | None:
    """The provider whose API this path belongs to, and what the path means; None when it is nobody's."""
    for provider in PROVIDERS:
        if route := provider.recognise(request):
            return provider, route
    return None


def speaker(request: Request) -> Provider:
    """The provider whose error shape this client reads, for requests that are not a known call.

    By host, then by the headers that only one provider's SDK sends, then by the versions that only Google's paths have,
    else OpenAI Chat, whose shape most clients read.
    """
    for provider in PROVIDERS:
        if request.host in provider.HOSTS:
            return provider
    if "anthropic-version" in request.headers:
        return anthropic
    if "x-goog-api-key" in request.headers or GOOGLE_PATH.search(request.path):
        return google
    return openai_chat
