"""The application: a route for every endpoint, and the files of the page."""

import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response, Router, get, post
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin

from traincast import __version__
from traincast.serve.about import Nothing
from traincast.serve.endpoints import ENDPOINTS, Endpoint
from traincast.serve.failures import Problem
from traincast.serve.guard import TAB
from traincast.serve.wire import Call, Message
from traincast.serve.workers import Gone, Workers
from traincast.shipped import SHIPPED

_FOLDERS = {"": SHIPPED / "serve", "explorer/": SHIPPED / "explorer"}
"""Shipped folders whose files a page may ask for, by what their names begin with."""
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_MOST_BYTES = 2 * 2**20
"""Of a request that brings no files."""


def application(workers: Workers) -> Litestar:
    """Return the application over some workers."""
    routes = [_route(each, workers) for each in ENDPOINTS.values() if not each.long]
    return Litestar(
        [page, asset, Router("/api", route_handlers=routes)],
        openapi_config=OpenAPIConfig(
            title="traincast",
            version=__version__,
            description="Forecasts, plans and explanations of steps of distributed LLM training.",
            path="/schema",
            render_plugins=[JsonRenderPlugin()],
        ),
        exception_handlers={HTTPException: _wrong, Exception: _broken},
        request_max_body_size=_MOST_BYTES,
    )


@get("/", include_in_schema=False)
async def page() -> Response[bytes]:
    """Return the page."""
    return _file(_FOLDERS[""] / "index.html")


@get("/assets/{name:path}", include_in_schema=False)
async def asset(name: str) -> Response[bytes]:
    """Return one of the page's own files."""
    found = _files().get(str(name).lstrip("/"))
    if found is None:
        raise NotFoundException("no such file of the page")
    return _file(found)


def _files() -> dict[str, Path]:
    """Return every file that a page may ask for; nothing else is looked at, whatever its name is."""
    return {
        prefix + path.relative_to(folder).as_posix(): path
        for prefix, folder in _FOLDERS.items()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _file(path: Path) -> Response[bytes]:
    return Response(path.read_bytes(), media_type=_TYPES.get(path.suffix, "text/plain; charset=utf-8"))


def _route(endpoint: Endpoint, workers: Workers) -> HTTPRouteHandler:
    """Return the route of an endpoint."""
    about = {
        "status_code": 200,
        "summary": endpoint.text,
        "operation_id": endpoint.name,
        "responses": {200: ResponseSpec(endpoint.answers, generate_examples=False, description="The answer.")},
    }
    if endpoint.takes is Nothing:

        async def ask(request: Request[Any, Any, Any]) -> Response[bytes]:
            return await answered(request, workers, Call(endpoint.name, b"{}"))

        return get(f"/{endpoint.name}", **about)(ask)  # type: ignore[arg-type]

    async def tell(data: Any, request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ANN401, ARG001
        return await answered(request, workers, Call(endpoint.name, await request.body()))

    tell.__annotations__["data"] = endpoint.takes
    return post(f"/{endpoint.name}", **about)(tell)  # type: ignore[arg-type]


async def answered(request: Request[Any, Any, Any], workers: Workers, call: Call) -> Response[bytes]:
    """Return what a worker answers to a call."""
    try:
        return response(await workers.run(call, tab=request.headers.get(TAB, "")))
    except Gone:
        return refusal(Problem.simple("superseded", "a newer request of this page came before; nothing to do"), 409)


def response(message: Message) -> Response[bytes]:
    """Return what a worker said as a response."""
    return Response(message.body, status_code=message.status, media_type="application/json")


def refusal(problem: Problem, status: int | None = None) -> Response[Any]:
    """Return a response that says what is wrong."""
    return Response({"error": problem}, status_code=status or problem.status, media_type="application/json")


def _wrong(_: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Say what is wrong with a request, in the words of every other problem."""
    extra = getattr(error, "extra", None)
    told = [f"{each.get('key', '')}: {each.get('message', '')}" for each in extra or () if isinstance(each, dict)]
    message = "; ".join(told) or error.detail
    return refusal(Problem.simple("not_found" if error.status_code == 404 else "request", message), error.status_code)


def _broken(_: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    # A fault of ours: whoever runs the server reads where it is, a page does not.
    traceback.print_exception(error)
    return refusal(Problem.simple("internal", "an error inside traincast; the server's own output says where"))


Application = Callable[[Any, Any, Any], Awaitable[None]]
"""What ASGI calls one."""
