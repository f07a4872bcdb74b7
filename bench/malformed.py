"""Malformed requests without end, from a seed: real bodies with something wrong in them, at real and at wrong paths.

The bodies are the recorded ones of real harnesses, texts and lists cut short: their structure is what is attacked. What
an answer must be is `fuzz`'s business.
"""

import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import brotli

from polar_mitm.chat import Json
from polar_mitm.providers import PROVIDERS, Request
from tests.proxy.asks import JSON_ASKS, STREAM_ASKS, with_tool
from tests.wire.fixtures import fixtures

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LONGEST_TEXT, MOST_ITEMS = 60, 6
"""Of the recorded bodies: short enough for a thousand cases a second, long enough for one item of most kinds."""

POSTED = {
    "anthropic": ("/v1/messages", "/v1/messages/count_tokens", "/anthropic/v1/messages"),
    "openai-chat": ("/v1/chat/completions", "/api/v1/chat/completions/"),
    "openai-responses": (
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/compact",
        "/backend-api/codex/responses",
    ),
    "google": (
        "/v1beta/models/gemini-9:generateContent",
        "/v1beta/models/gemini-9:streamGenerateContent",
        "/v1beta/models/gemini-9:countTokens",
        "/v1internal:generateContent",
        "/v1internal:streamGenerateContent",
        "/v1internal:countTokens",
        "/v1internal:loadCodeAssist",
    ),
}
FETCHED = (
    "/v1/models",
    "/v1/models/m%2Fn",
    "/v1beta/models",
    "/v1beta/models/%00%ff",
    "/v1/responses/resp_1",
    "/api/hello",
    "/backend-api/wham/accounts/check",
)
NOWHERE = (
    "/",
    "//",
    "/v1",
    "/v1/",
    "/v1/messages/",
    "/v1/messages/batches",
    "/v1/embeddings",
    "/v1/responses/x/cancel",
    "/v1beta/models/:generateContent",
    "/v1beta/models/a:unknown",
    "/v1beta/models/a:b:generateContent",
    "/v1internal:",
    "/%F0%9F%98%80/%ZZ",
    "/..%2f..%2fetc/passwd",
    "/s/ses_unknown/v1/messages",
    "/v1/chat/completions/" + "x" * 2000,
)
METHODS = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND")
HEADERS = {
    "anthropic": {"anthropic-version": "2023-06-01", "x-claude-code-session-id": "\u00e9" * 20},
    "openai-chat": {"session-id": "s", "x-stainless-retry-count": "9" * 30},
    "openai-responses": {"thread-id": "t", "x-codex-turn-metadata": '{"a":'},
    "google": {"x-goog-api-client": "x"},
}
QUERIES: tuple[dict[str, str], ...] = ({}, {"alt": "sse"}, {"alt": "json"}, {"beta": "true"}, {"client_version": "9"})

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
    1e308,
    -0.0,
    0.5,
    "",
    " ",
    "null",
    "\x00",
    "\u202e\ufeff",
    "\ud83d\ude00" * 3,
    "\ud800",
    "\U0010ffff",
    "e\u0301" * 40,
    "{}",
    "data:image/png;base64,%%%",
    "data:;base64,",
    "<|im_start|>system",
    [],
    [[]],
    [None],
    ["", 1, {}],
    {},
    {"": ""},
    {"type": None},
    {"type": "unknown"},
    {"type": "text"},
    {"role": "user"},
    {"$ref": "#"},
)


@dataclass(slots=True, frozen=True)
class Case:
    """A request. `key` is what it says of who sends it."""

    number: int
    meant: str
    """The provider whose path or body it began with."""
    request: Request
    content: bytes
    key: str
    """`right`, `wrong` or `none`."""

    def __str__(self) -> str:
        shown = self.content if len(self.content) <= 2000 else self.content[:2000] + b"..."
        request = self.request
        return f"case {self.number}: {request.method} {request.path} {dict(request.query)} {request.headers} {shown!r}"


type Path = tuple[str | int, ...]


@dataclass(slots=True, frozen=True)
class Seed:
    """A valid body, with what is wanted of it for every case that begins with it."""

    body: Json
    places: list[Path]
    enums: list[str]


def cases(seed: int, number: int) -> Iterator[Case]:
    """The same cases for the same seed."""
    seeds, words = _seeds(), _field_names()
    for index in range(number):
        yield _case(index, random.Random(f"{seed}/{index}"), seeds, words)


def _case(number: int, dice: random.Random, seeds: dict[str, list[Seed]], words: dict[str, list[str]]) -> Case:
    meant = dice.choice(sorted(seeds))
    begun = dice.choice(seeds[meant if dice.random() < 0.97 else dice.choice(sorted(seeds))])
    body, places = begun.body, begun.places
    for change in range(dice.choice((1, 1, 1, 1, 2, 3))):
        places = _places(body) if change else places
        body = _changed(body, dice.choice(places), dice, words[meant], begun.enums)
    if dice.random() < 0.01:
        at = dice.choice(_places(body))
        body = _replaced(body, at, lambda value: _deep(value, dice.choice((100, 190, 300)), dice.choice(words[meant])))
    content = json.dumps(body, ensure_ascii=dice.random() < 0.5).encode(errors="surrogatepass")
    if dice.random() < 0.15:
        content = _bent(content, dice)
    method, path = "POST", dice.choice(POSTED[meant])
    match dice.random():
        case low if low < 0.03:
            method = dice.choice(METHODS)
        case low if low < 0.06:
            path = dice.choice(NOWHERE)
        case low if low < 0.08:
            method, path = dice.choice(("GET", "GET", "POST")), dice.choice(FETCHED)
    headers = {"content-type": dice.choice(("application/json", "text/plain", "application/json; charset=utf-7"))}
    if dice.random() < 0.5:
        headers |= HEADERS[meant]
    if dice.random() < 0.1:
        coding, content = _coded(content, dice)
        headers["content-encoding"] = coding
    host = next(provider.HOSTS[0] for provider in PROVIDERS if meant == provider.NAME)
    key = dice.choices(("right", "none", "wrong"), (0.9, 0.05, 0.05))[0]
    return Case(number, meant, Request(method, host, path, dice.choice(QUERIES), headers), content, key)


def _seeds() -> dict[str, list[Seed]]:
    """Valid bodies by provider."""
    bodies: dict[str, list[Json]] = {provider.NAME: [] for provider in PROVIDERS}
    for ask in (*JSON_ASKS, *map(with_tool, JSON_ASKS), *STREAM_ASKS):
        bodies["google" if ask.provider == "google-array" else ask.provider].append(ask.body)
    for fixture in fixtures():
        if isinstance(fixture.data["body"], dict):
            bodies[fixture.route()[0].NAME].append(_cut(fixture.body))
    return {
        name: [Seed(body, _places(body), sorted(set(_enums(body)))) for body in given] for name, given in bodies.items()
    }


def _cut(value: Any) -> Any:
    """The value with long texts and long lists cut short. Of a list, its last items are what is newest in it."""
    match value:
        case str():
            return value[:LONGEST_TEXT]
        case dict():
            return {name: _cut(inner) for name, inner in value.items()}
        case list() if len(value) > MOST_ITEMS:
            return [_cut(inner) for inner in (*value[:2], *value[2 - MOST_ITEMS :])]
        case list():
            return [_cut(inner) for inner in value]
        case _:
            return value


def _field_names() -> dict[str, list[str]]:
    """By provider: every field that its API is known to have, whichever object it belongs into."""
    return {p.NAME: sorted({name.rpartition(".")[2] for name in p.FATES} - {"*"}) for p in PROVIDERS}


def _enums(value: Any) -> Iterator[str]:
    """The words that say what an object is."""
    if isinstance(value, dict):
        yield from (value[name] for name in ("type", "role", "mode", "status") if isinstance(value.get(name), str))
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _enums(inner)


def _places(value: Any) -> list[Path]:
    """Of the value itself and of everything in it."""
    found: list[Path] = [()]
    values = [value]
    for at, inner in zip(found, values, strict=False):  # both grow while they are read
        if isinstance(inner, dict):
            found += [(*at, name) for name in inner]
            values += inner.values()
        elif isinstance(inner, list):
            found += [(*at, index) for index in range(len(inner))]
            values += inner
    return found


def _replaced(value: Any, at: Path, change: Callable[[Any], Any]) -> Any:
    """A copy in which the value at this place is another; only what lies on the way there is copied."""
    if not at:
        return change(value)
    copy: Any = value.copy()
    copy[at[0]] = _replaced(value[at[0]], at[1:], change)
    return copy


def _changed(body: Any, at: Path, dice: random.Random, words: list[str], enums: list[str]) -> Any:
    """The body with the value at this place made wrong."""

    def change(value: Any) -> Any:
        match dice.randrange(7), value:
            case 0, dict() | list() if value:
                return _without(value, dice)
            case 1, dict():
                return {**value, dice.choice(words): dice.choice(ODD)}
            case 1, list():
                return value * 2 + [dice.choice(ODD)]
            case 2, list():
                return dice.sample(value, len(value))
            case 2, str():
                return dice.choice([*enums, value.upper(), value + "x"])
            case 3, _:
                return [value]
            case 4, _:
                return {dice.choice(words): value}
            case 5, str() if dice.random() < 0.3:
                return value * 200
            case _:
                return dice.choice(ODD)

    return _replaced(body, at, change)


def _without(value: Any, dice: random.Random) -> Any:
    gone = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
    if isinstance(value, dict):
        return {name: inner for name, inner in value.items() if name != gone}
    return value[:gone] + value[gone + 1 :]


def _deep(value: Any, levels: int, name: str) -> Any:
    for level in range(levels):
        value = [value] if level % 2 else {name: value}
    return value


def _bent(content: bytes, dice: random.Random) -> bytes:
    """Bytes wrong."""
    at = dice.randrange(len(content) + 1)
    match dice.randrange(8):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + dice.randbytes(dice.randrange(1, 5)) + content[at:]
        case 2:
            return content[:at] + bytes([dice.randrange(256)]) + content[at + 1 :]
        case 3:
            return content + dice.choice((b"\n", b"{}", b"\x00", b","))
        case 4:
            return b"\xef\xbb\xbf" + content
        case 5:
            return b'{"a":[' * 3000 + content + b"]}" * 3000
        case 6:
            return dice.choice((b"", b"[]", b"null", b'"x"', b"NaN", b"{'a': 1}", b"{" * 100_000, b"[" * 100_000))
        case _:
            return content.decode(errors="replace").encode(dice.choice(("utf-16", "utf-32", "utf-8")))


def _coded(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    """A content coding, and the content in it or in another one."""
    codings: dict[str, Callable[[bytes], bytes]] = {
        "gzip": lambda plain: gzip.compress(plain, 1, mtime=0),
        "deflate": lambda plain: zlib.compress(plain, 1),
        "br": lambda plain: bytes(brotli.compress(plain, quality=1)),
        "zstd": lambda plain: zstd.compress(plain, 1),
        "gzip, br": lambda plain: bytes(brotli.compress(gzip.compress(plain, 1, mtime=0), quality=1)),
    }
    said = dice.choice(sorted(codings))
    coded = codings[said](content)
    match dice.randrange(6):
        case 0:
            return dice.choice(("compress", "GZIP,", "identity, identity", "gzip" + ",gzip" * 9, "\u00e9")), coded
        case 1:
            return said, coded[: dice.randrange(len(coded))]
        case 2:
            return said, coded + coded
        case 3:
            return dice.choice(sorted(codings)), coded
        case 4:
            return said, content
        case _:
            return said, coded
