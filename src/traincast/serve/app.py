"""The application: a route for every endpoint, and the files of the page."""

import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from socket import socket
from typing import Any

import msgspec
import uvicorn
from litestar import Litestar, Request, Response, Router, delete, get, post
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.response import Stream

from traincast import __version__, report
from traincast.errors import TraincastError
from traincast.report.explorer.sources import explorer_module, explorer_style
from traincast.serve.endpoints import ENDPOINTS, Endpoint
from traincast.serve.failures import Problem, problem_of
from traincast.serve.guard import TAB, Guard
from traincast.serve.records.explanations import FilesRecord
from traincast.serve.records.forms import Nothing
from traincast.serve.tasks import LongTasks, Started
from traincast.serve.uploads import MOST_BYTES, stored
from traincast.serve.wire import Message, WorkerCall
from traincast.serve.workers import Gone, Workers
from traincast.shipped import SHIPPED

_FOLDERS = {"": SHIPPED / "serve", "explorer/": SHIPPED / "explorer"}
"""Shipped folders whose files a page may ask for, by what their names begin with."""
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_MOST_BYTES = 2 * 2**20
"""Of a request that brings no files."""
_MOST_AT_ONCE = 512
"""Connections; more are told to come later."""


def application(workers: Workers, tasks: LongTasks) -> Litestar:
    """Return the application over some workers."""
    routes = [
        _files_route(each, tasks)
        if each.takes is FilesRecord
        else _task_route(each, tasks)
        if each.long
        else _route(each, workers, tasks)
        for each in ENDPOINTS.values()
    ]
    return Litestar(
        [page, interface, asset, documents, document, Router("/api", route_handlers=[*routes, *task_routes(tasks)])],
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


class PageServer(uvicorn.Server):
    """A server that ends what it works at before it waits for those who asked."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stop listening, once whoever waits has an answer."""
        await self._stop()
        await super().shutdown(sockets)


def server_of(app: Guard, stop: Callable[[], Awaitable[None]]) -> PageServer:
    """Return a server of an application with its guard; `stop` ends its work, so that nobody waits any more."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=_MOST_AT_ONCE,
    )
    return PageServer(config, stop)


@get("/", include_in_schema=False)
async def page() -> Response[bytes]:
    """Return the page."""
    return _file(_FOLDERS[""] / "index.html")


@get("/documents", include_in_schema=False)
async def documents() -> list[str]:
    """Return the names of the documents of ``--json``, whose schemas are at ``/documents/{name}``."""
    return sorted(report.DOCUMENTS)


@get("/documents/{name:str}", include_in_schema=False)
async def document(name: str) -> Response[bytes]:
    """Return the JSON Schema of a document of ``--json``."""
    if name not in report.DOCUMENTS:
        raise NotFoundException(f"no such document; known: {', '.join(sorted(report.DOCUMENTS))}")
    return Response(report.encode(report.schema(name)), media_type="application/json")


@get("/interface", include_in_schema=False)
async def interface() -> Response[bytes]:
    """Return the page that describes the interface for programs."""
    return _file(_FOLDERS[""] / "interface.html")


@get("/assets/{name:path}", include_in_schema=False)
async def asset(name: str) -> Response[bytes]:
    """Return one of the page's own files, or the explorer of `traincast.report.explorer` as a module."""
    made = {"/explorer.js": explorer_module, "/explorer.css": explorer_style}.get(str(name))
    if made is not None:
        return Response(made().encode(), media_type=_TYPES[Path(name).suffix])
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
        if path.is_file() and path.suffix != ".zip"
    }


def _file(path: Path) -> Response[bytes]:
    return Response(path.read_text(encoding="utf-8").encode(), media_type=_TYPES.get(path.suffix, "text/plain"))


def _about(endpoint: Endpoint, answers: Any, status: int = 200) -> dict[str, Any]:  # noqa: ANN401
    """Return what the description of the interface says of an endpoint."""
    return {
        "status_code": status,
        "summary": endpoint.text,
        "operation_id": endpoint.name,
        "responses": {status: ResponseSpec(answers, generate_examples=False, description="The answer.")},
    }


def _route(endpoint: Endpoint, workers: Workers, tasks: LongTasks) -> HTTPRouteHandler:
    """Return the route of an endpoint that answers at once."""
    about = _about(endpoint, endpoint.answers)
    if endpoint.takes is Nothing:

        async def ask(request: Request[Any, Any, Any]) -> Response[bytes]:
            return await answered(request, workers, WorkerCall(endpoint.name, b"{}"))

        return get(f"/{endpoint.name}", **about)(ask)

    async def tell(data: Any, request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ANN401
        task = tasks.find(name) if (name := getattr(data, "task", "")) else None
        if name and task is None:
            return refusal(_FORGOTTEN, 404)
        folder = "" if task is None else str(task.folder)
        return await answered(request, workers, WorkerCall(endpoint.name, await request.body(), folder))

    tell.__annotations__["data"] = endpoint.takes
    return post(f"/{endpoint.name}", **about)(tell)


_FORGOTTEN = Problem.simple("not_found", "the task is not known any more; start it again")


def _task_route(endpoint: Endpoint, tasks: LongTasks) -> HTTPRouteHandler:
    """Return the route of an endpoint that starts a task."""

    async def start(data: Any, request: Request[Any, Any, Any]) -> Started:  # noqa: ANN401, ARG001
        task = tasks.new(request.headers.get(TAB, ""))
        tasks.start(task, endpoint.name, await request.body())
        return Started(task.id)

    start.__annotations__["data"] = endpoint.takes
    return post(f"/{endpoint.name}", **_about(endpoint, Started, 202))(start)


def _files_route(endpoint: Endpoint, tasks: LongTasks) -> HTTPRouteHandler:
    """Return the route of a task that takes files."""

    async def start(request: Request[Any, Any, Any]) -> Response[Any]:
        task = tasks.new(request.headers.get(TAB, ""))
        kind, options = request.content_type
        if kind != _MULTIPART:
            tasks.start(task, endpoint.name, await request.body())
            return Response(Started(task.id), status_code=202)
        try:
            upload = await stored(request.stream(), options.get("boundary", ""), task.folder)
        except TraincastError as error:
            tasks.drop(task)
            return refusal(problem_of(error))
        asked = FilesRecord(files=tuple(upload.files), words=dict(upload.words))
        tasks.start(task, endpoint.name, msgspec.json.encode(asked))
        return Response(Started(task.id), status_code=202)

    return post(f"/{endpoint.name}", request_max_body_size=MOST_BYTES, **_about(endpoint, Started, 202))(start)


_MULTIPART = "multipart/form-data"


def task_routes(tasks: LongTasks) -> list[HTTPRouteHandler]:
    """Return the routes of tasks by their ids."""

    @get("/tasks/{name:str}/events", summary="Say how far a task is, as server-sent events.", operation_id="events")
    async def events(name: str) -> Response[Any]:
        task = tasks.find(name)
        if task is None:
            return refusal(_FORGOTTEN, 404)
        return Stream(tasks.events(task), media_type="text/event-stream")

    @delete("/tasks/{name:str}", status_code=204, summary="End a task, and forget it.", operation_id="cancel")
    async def cancel(name: str) -> None:
        task = tasks.find(name)
        if task is not None:
            tasks.cancel(task)

    return [events, cancel]


async def answered(request: Request[Any, Any, Any], workers: Workers, call: WorkerCall) -> Response[bytes]:
    """Return what a worker answers to a call."""
    try:
        tab, slow = request.headers.get(TAB, ""), ENDPOINTS[call.name].slow
        return response(await workers.run(call, tab=tab, long=slow))
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
    if isinstance(error, RecursionError):
        return refusal(Problem.simple("request", "the request is nested too deep; send what the endpoint takes"))
    # A fault of ours: whoever runs the server reads where it is, a page does not.
    traceback.print_exception(error)
    return refusal(Problem.simple("internal", "an error inside traincast; the server's own output says where"))
