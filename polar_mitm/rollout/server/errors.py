"""The one place where an error becomes an answer."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from polar_mitm.client.models import ErrorBody, Problem
from polar_mitm.rollout.server.fleet import Superseded
from polar_mitm.rollout.server.scenarios import ScenarioRefused
from polar_mitm.rollout.store.files import TooLarge
from polar_mitm.rollout.store.writer import Conflict, NotFound, StoreFailed

RETRY_S = "2"

CODES = {400: "invalid", 401: "unauthorized", 404: "not_found", 405: "not_allowed", 413: "too_large"}

ANSWERS: dict[type[Exception], tuple[int, str]] = {
    NotFound: (404, "not_found"),
    Conflict: (409, "conflict"),
    Superseded: (409, "superseded"),
    TooLarge: (413, "too_large"),
    FileNotFoundError: (404, "not_found"),
    StoreFailed: (503, "unavailable"),
    SQLAlchemyError: (503, "unavailable"),
    OSError: (503, "unavailable"),
    ClientDisconnect: (400, "invalid"),  # nobody hears it
}


def answer(status: int, code: str, message: str, field: str | None = None) -> JSONResponse:
    body = ErrorBody(error=Problem(code=code, message=message, field=field))
    headers = {"Retry-After": RETRY_S} if status == 503 else None
    return JSONResponse(body.model_dump(), status, headers=headers)


def install(app: FastAPI) -> None:
    for kind in ANSWERS:
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(ScenarioRefused, _scenario)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def _known(_: Request, error: Exception) -> JSONResponse:
    status, code = next(found for kind, found in ANSWERS.items() if isinstance(error, kind))
    message = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
    if isinstance(error, SQLAlchemyError):
        message = f"the database cannot be read: {error.__cause__ or error}"[:500]
    elif status == 503 and isinstance(error, OSError):
        message = f"the server's files: {error.strerror or error}"
    return answer(status, code, message)


def _scenario(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScenarioRefused)
    return answer(422, "invalid", f"{error.field}: {error}", error.field)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    field = ".".join(place[1:]) or place[0]
    return answer(422, "invalid", f"{field}: {first['msg']}", field)


def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return answer(error.status_code, CODES.get(error.status_code, "refused"), str(error.detail))
