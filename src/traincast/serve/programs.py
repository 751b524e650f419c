"""Programs that ask over the Model Context Protocol, on standard input and output: an assistant in an editor, say.

Source: Model Context Protocol, specification of 2025-06-18 (tools; transports, stdio). Its Python SDK is ``mcp``.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
import msgspec
from anyio import from_thread, to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from traincast import __version__
from traincast.errors import TraincastError, UnknownNameError
from traincast.progress import listening
from traincast.serve.tools import TOOLS, Answer

Tell = Callable[[str, float], None]
"""Told what is done, and which share of it is behind."""
_PAUSE_S = 0.2
"""Least time between two words on how far a call is."""
_ABOUT = (
    "Forecasts, plans and explains steps of distributed LLM training on real clusters, by simulation. Numbers that "
    "were assumed are listed under 'assumptions'; a step has a 90 % interval."
)


def message_of(error: Exception) -> str:
    """Return what is wrong and what to do, in a line."""
    if isinstance(error, TraincastError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"internal error: {type(error).__name__}: {error}; this is a fault of traincast: report it with the input"


def serve_programs() -> None:
    """Answer programs on standard input until it ends; nothing else goes to standard output."""
    one_at_a_time = anyio.CapacityLimiter(1)

    async def list_tools(_context: Any, _asked: Any) -> types.ListToolsResult:  # noqa: ANN401
        hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        tools = [
            types.Tool(
                name=each.name, title=each.title, description=each.text, input_schema=each.schema, annotations=hints
            )
            for each in TOOLS.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:  # noqa: ANN401
        def tell(what: str, share: float) -> None:
            from_thread.run(context.session.report_progress, share, 1.0, what or asked.name)

        def work() -> Answer:
            return answered(asked.name, asked.arguments or {}, tell, from_thread.check_cancelled)

        try:
            found = await to_thread.run_sync(work, limiter=one_at_a_time)
        except Exception as error:
            return types.CallToolResult(content=[types.TextContent(text=message_of(error))], is_error=True)
        # Programs differ in which of both they hand on.
        body = msgspec.json.encode(found.document)
        content = [types.TextContent(text=found.headline), types.TextContent(text=body.decode())]
        return types.CallToolResult(content=[*content], structured_content=msgspec.json.decode(body))

    server = Server(
        "traincast",
        version=__version__,
        title="traincast",
        instructions=_ABOUT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def answered(name: str, arguments: Mapping[str, Any], tell: Tell, check: Callable[[], None]) -> Answer:
    """Return what a tool answers; `check` is called now and then, and ends the work by what it raises."""
    tool = TOOLS.get(name)
    if tool is None:
        raise UnknownNameError("tool", name, [*TOOLS])
    last = 0.0

    def listener(what: str, share: float) -> None:
        nonlocal last
        check()
        now = time.monotonic()
        if now - last >= _PAUSE_S:
            last = now
            tell(what, share)

    with listening(listener, every=True):
        return tool.answer(arguments)
