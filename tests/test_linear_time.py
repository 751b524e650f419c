"""No regular expression, and no reader, takes time that grows faster than what it reads."""

import ast
import gzip
import importlib
import pkgutil
import re
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import pytest

import traincast
from traincast.errors import TraincastError
from traincast.formats.straggler_st import COLUMNS
from traincast.formats.training_log.dialects import DIALECTS
from traincast.formats.training_log.printed import Printed
from traincast.shipped import SHIPPED, shipped_text
from training_logs import event_file

SOURCE = Path(traincast.__file__).parent
METHODS = ("match", "search", "fullmatch", "sub", "split", "findall", "finditer")
FLAGS = {"MULTILINE", "IGNORECASE", "DOTALL", "ASCII", "VERBOSE"}
PIECES = [
    *"\n \t0a,.:-=*[{(\"'\\$\x1b",
    *("\n ", "a ", "a,", "a.", "0,", "-0", " :", " #", "${", '\\"', "0 0 a\n", "[1,0"),
]
BEFORE = ("a", '"', "[", "${a:-", "# ")
SIZE = 1000
TIMES = 8
"""How much longer the long text is: what is linear takes 8 times as long, what is quadratic 64 times."""
SLOW_S = 1e-3
"""Time of the long text below which nothing is asked."""


def modules():
    for found in pkgutil.walk_packages(traincast.__path__, "traincast."):
        if found.name.rpartition(".")[2] not in ("__main__", "kernel", "ray"):
            yield importlib.import_module(found.name)


def held(value, depth=4):
    """Yield the expressions in a value of a module, whatever holds them."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from held(each, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from held(each, depth - 1)
    elif depth and isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from held(getattr(value, name), depth - 1)


def of_modules():
    for module in modules():
        text = Path(module.__file__).read_text()
        for name, value in list(vars(module).items()) if "re." in text else ():
            patterns = [each for each in held(value) if isinstance(each.pattern, str)]
            for pattern in patterns:
                methods = set(re.findall(rf"\b{name}\.({'|'.join(METHODS)})\b", text)) or {"search"}
                yield pattern.pattern, pattern.flags, methods, f"{module.__name__}.{name}"


def of_calls():
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(rf"\bre\.({'|'.join(METHODS)})\(", text) else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in METHODS):
                continue
            if isinstance(node.args[0], ast.Constant):
                said = ast.unparse(node)
                flags = sum(getattr(re, flag) for flag in FLAGS if f"re.{flag}" in said)
                yield node.args[0].value, flags, {node.func.attr}, f"{path.relative_to(SOURCE)}:{node.lineno}"


def of_dialects():
    """Yield the expressions of dialects of training logs, which are made when a log is read."""
    for dialect in DIALECTS:
        for printed in (dialect.opened, *vars(importlib.import_module(PRINTING.get(dialect.name, "re"))).values()):
            if isinstance(printed, Printed):
                head, telling, numbers = printed.expressions
                for pattern in filter(None, (head, telling, *numbers)):
                    yield pattern.pattern, pattern.flags, {"search"}, f"dialect {dialect.name}"


PRINTING = {"megatron": "traincast.formats.training_log.dialects.megatron"}
"""Modules of dialects that read more than one kind of line."""


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (each for pair in value.items() for part in pair for each in texts(part))
    elif isinstance(value, list):
        yield from (each for item in value for each in texts(item))


def of_tables():
    """Yield what in the tables may be an expression: what is none is taken for one, too."""
    for path in sorted(SHIPPED.rglob("*.toml")):
        name = path.relative_to(SHIPPED).as_posix()
        for text in texts(tomllib.loads(shipped_text(name))):
            if re.search(r"[*+?]", text) and re.search(r"\\[dswb.]|\(\?|\[[^\]]*\]|\.[*+]", text) and " = " not in text:
                try:
                    re.compile(text)
                except re.error:
                    continue
                yield text, 0, {"search"}, name


def seconds(call, repeats=1):
    found = []
    for _ in range(repeats):
        begin = time.thread_time()
        call()
        found.append(time.thread_time() - begin)
    return min(found)


def used(pattern, method, text):
    if method == "sub":
        return lambda: pattern.sub("", text)
    if method == "finditer":
        return lambda: [None for _ in pattern.finditer(text)]
    return lambda: getattr(pattern, method)(text)


def repeated(pattern, method, before, piece, size):
    return used(pattern, method, before + piece * (size // len(piece)))


def grows(call_of, size=SIZE, slow_s=SLOW_S):
    """Return whether time grows faster than the size; `call_of` gives the call for a size.

    The least of several times on each side, three times over, and a bound far from what is linear and from what
    is quadratic: a busy machine moves both by a factor of two.
    """
    long, short = call_of(TIMES * size), call_of(size)
    return seconds(long) > slow_s and all(seconds(long, 2) > 2.5 * TIMES * seconds(short, 5) for _ in range(3))


def test_an_expression_that_is_not_linear_is_noticed():
    for bad, piece in ((r"^\s*\d+:", "\n"), (r"\s+a", " "), (r"-{10,} a", "-")):
        pattern = re.compile(bad, re.MULTILINE)
        assert grows(lambda n, bad=pattern, piece=piece: used(bad, "search", piece * n), 300), bad


@pytest.mark.slow
def test_every_expression_takes_linear_time():
    asked, slow = set(), []
    for text, flags, methods, place in (*of_modules(), *of_calls(), *of_tables(), *of_dialects()):
        if len(re.findall(r"(?<!\\)[*+]|\{\d*,", text)) == 0:
            continue  # what repeats nothing without end is linear
        pattern = re.compile(text, flags & ~re.UNICODE)
        for method in methods - {q for q in methods if (text, flags, q) in asked}:
            asked.add((text, flags, method))
            inputs = [("", piece) for piece in PIECES] + list(product(BEFORE, " 0a"))
            for before, piece in inputs:
                call = partial(repeated, pattern, method, before, piece)
                if grows(call):
                    slow.append(f"{place}: {method} of {text!r} on {before!r} and many {piece!r}")
                    break
    assert len(asked) > 100
    assert not slow, "\n".join(slow)


HEADS = {
    "plain": b"",
    "aicb": b"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 8\n20\n",
    "kineto": b'{"schemaVersion": 1, "traceEvents": [',
    "kineto end": b'{"schemaVersion": 1, "traceEvents": [], "deviceProperties": [',
    "kineto event": b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "args": {"a": [',
    "echo": b"rank:0:forward_step(stage_id=0,batch_id=0,duration=1.0",
    "nccl": b"# nThread 1 nGpus 8\n#  size count type\n",
    "log": b" iteration 1/ 10 | consumed samples: 8 | elapsed time per iteration (ms): 9.0 |\n",
    "log bars": b" 10%|#   | 10/1000 [01:05<09:45, 1.54it/s]\r{'loss': 2.5, ",
    "log rows": b"step,step_s\n1,1.5\n",
    "log objects": b'{"step": 1, "step_s": 1.5}\n{"step": 2, ',
    "log document": b'{"log_history": [{"step": 1, "step_s": 1.5}, ',
    "log records": event_file([(1.7e9, 1, "iteration-time", 1.5)]),
    "toml": b'[model]\nname = "llama3-8b"\n',
    "json": b'{"hidden_size": 4096, ',
    "yaml": b"trainer:\n  num_nodes: 8\n",
    "csv": b"op,ranks,size_bytes,time_us\n",
    "straggler": ",".join(COLUMNS).encode() + b"\n",
}
"""How a file of each kind begins."""


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("head", HEADS)
def test_a_long_constant_file_is_read_or_refused_in_linear_time(tmp_path, head, packed):
    def call_of(piece, suffix, size):
        content = HEADS[head] + piece.encode() * (size // len(piece))
        path = tmp_path / f"file{size}{suffix}"
        path.write_bytes(gzip.compress(content, 1) if packed else content)
        return partial(read, path)

    def read(path):
        for call in (traincast.inspect, partial(traincast.simulate, cluster="h100")):
            with suppress(TraincastError):
                call(path)

    suffix = {"toml": ".toml", "json": ".json", "yaml": ".yaml"}.get(head, ".txt")
    slow = [piece for piece in FEW if grows(partial(call_of, piece, suffix), 2**12, 0.1)]
    assert not slow


FEW = ("\n", " ", "0", "a", ",", '"', "[", "{", "-", "0 0 a\n", "a: b\n")
