"""JSON of requests is read strictly: no NaN, no halves of surrogate pairs, integers of any size."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from polar_mitm.json_text import loads


class StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = loads(body)
            except (ValueError, RecursionError) as error:
                raise json.JSONDecodeError(str(error), "", 0) from error
        return self._json


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
