"""What programs ask over the Model Context Protocol, with the client of its SDK."""

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from click.testing import CliRunner

from traincast.cli.main import cli
from traincast.job.fields import FIELDS
from traincast.job.options import LayoutOptions, StepOptions
from traincast.job.request import JOB_FIELDS

SOURCE = Path(__file__).parents[2] / "src"
EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 64, "seq_length": "4k", "tp": 2}
FLAGS = [each for name, value in JOB.items() for each in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module", autouse=True)
def _the_sdk():
    pytest.importorskip("mcp", reason="the extra serve is not installed (mcp)")


def asked(*calls, told=None):
    """Return what is answered to calls of tools, and the tools."""
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "traincast.cli", "serve", "--mcp"], env=ENVIRONMENT, cwd=EXAMPLES
    )

    async def progress(share, total, message):
        told.append((share, total, message))

    async def ask():
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            further = {} if told is None else {"progress_callback": progress}
            return tools, [await session.call_tool(name, words, **further) for name, words in calls]

    return anyio.run(ask)


def printed(*words):
    """Return the JSON that a command prints."""
    with chdir(EXAMPLES):
        return json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)


@pytest.fixture(scope="module")
def answers():
    calls = {
        "predict": JOB,
        "explain": {"files": ["megatron_pp4_tp2"], "what_if": ["rank7.compute=peers"]},
        "inspect": {"files": ["aicb_gpt_405b_1024gpu.txt"]},
        "check": {"logs": ["check/today.log"], "cluster": "h100", "baseline": ["check/last_good.log"], "causes": False},
        "plan": {**{name: each for name, each in JOB.items() if name != "tp"}, "max_tp": 4, "explain": [{"tp": 4}]},
    }
    tools, found = asked(*calls.items())
    assert [each.name for each in tools] == ["predict", "plan", "explain", "check", "inspect"]
    return dict(zip(calls, found, strict=True))


COMMANDS = {
    "predict": ("predict", *FLAGS),
    "explain": ("simulate", "megatron_pp4_tp2", "--what-if", "rank7.compute=peers"),
    "inspect": ("inspect", "aicb_gpt_405b_1024gpu.txt"),
    "check": ("check", "check/today.log", "--cluster", "h100", "--baseline", "check/last_good.log", "--no-causes"),
    "plan": ("plan", *FLAGS[:-2], "--max-tp", "4", "--explain", "tp=4"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_answer_is_the_json_of_the_command(answers, name):
    found = answers[name]
    assert not found.is_error, found.content
    # A plan says how long it took, which is no forecast.
    timeless = [
        {key: each for key, each in one.items() if key != "screen_s"}
        for one in (found.structured_content, printed(*COMMANDS[name]))
    ]
    assert timeless[0] == timeless[1]
    headline, text = (each.text for each in found.content)
    assert json.loads(text) == found.structured_content
    assert headline
    assert "{" not in headline


def test_the_headline_says_the_step(answers):
    assert answers["predict"].content[0].text.startswith("Step ")
    assert "slower" in answers["check"].content[0].text


def test_an_error_is_one_message_and_the_next_call_is_answered():
    _, found = asked(
        ("predict", {**JOB, "tp": 3}),
        ("predict", {**JOB, "teepee": 3}),
        ("predict", {**JOB, "model": "llama9-8b"}),
        ("inspect", {"files": ["none_such.txt"]}),
        ("explain", {}),
        ("forecast", JOB),
        ("predict", JOB),
    )
    *wrong, right = found
    assert [each.is_error for each in wrong] == [True] * len(wrong)
    messages = [each.content[0].text for each in wrong]
    assert all(len(each.content) == 1 for each in wrong)
    for message, part in zip(
        messages, ("tp", "teepee", "llama9-8b", "none_such.txt", "files", "forecast"), strict=True
    ):
        assert part in message
        assert "internal" not in message
    assert not right.is_error


def test_a_plan_tells_how_far_it_is():
    told = []
    asked(("plan", {name: each for name, each in JOB.items() if name != "tp"}), told=told)
    assert told
    assert all(0 <= share <= total for share, total, _ in told)


def test_arguments_have_types_and_the_help_of_the_fields():
    from traincast.serve.tools import TOOLS

    taken = TOOLS["predict"].arguments
    assert (
        {*JOB_FIELDS}
        <= {*taken}
        <= {*JOB_FIELDS, *StepOptions.__struct_fields__, "job", "recipe", "cluster", "allow_oom"}
    )
    assert {*TOOLS["explain"].arguments} <= {*LayoutOptions.__struct_fields__, "files", "cluster", "what_if"}
    for tool in TOOLS.values():
        assert tool.schema["additionalProperties"] is False
        for name, each in tool.arguments.items():
            assert each["type"], name
            assert each["description"], name
    assert taken["tp"]["description"] == FIELDS["tp"].help


def test_nothing_but_the_protocol_goes_to_standard_output():
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
    }
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "predict", "arguments": JOB}}
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    command = [sys.executable, "-m", "traincast.cli", "serve", "--mcp"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=ENVIRONMENT, text=True) as process:
        for each in (hello, told, call):
            process.stdin.write(json.dumps(each) + "\n")
        process.stdin.flush()
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.stdin.close()
        rest = process.stdout.read()
        assert process.wait(30) == 0
    assert [json.loads(line)["id"] for line in lines] == [1, 2]
    assert rest == ""


def test_it_is_given_alone():
    command = [sys.executable, "-m", "traincast.cli", "serve", "--mcp", "--port", "1234"]
    found = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "--mcp serves no page" in found.stderr
