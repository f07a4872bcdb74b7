"""The dashboard: one page for a browser, which asks the API for all that it shows."""

from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException
from fastapi import Path as InPath
from fastapi.responses import Response

router = APIRouter(include_in_schema=False)

FOLDER: Final = Path(__file__).parents[1] / "dashboard"
TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
}
HEADERS: Final = {
    # Bars get their width by style: elements' own styles are allowed, style sheets and scripts from elsewhere are not.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def index() -> Response:
    return _file("index.html")


@router.get("/dashboard/{name}")
async def part(name: Annotated[str, InPath()]) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    if name not in TYPES:
        raise HTTPException(404, f"the dashboard has no {name!r}")
    return Response((FOLDER / name).read_bytes(), media_type=TYPES[name], headers=HEADERS)
