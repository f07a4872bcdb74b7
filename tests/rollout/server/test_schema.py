"""What the OpenAPI document says of the server."""

from tests.rollout.server.conftest import On


async def test_the_document_names_every_error_it_may_answer_with(on: On) -> None:
    document = (await on.client.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path != "/healthz":
                assert {"401", "422", "503"} <= set(operation["responses"]), (method, path)
            assert operation["description"], (method, path)
