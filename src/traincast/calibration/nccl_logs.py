"""Read the logs of nccl-tests, as the terminal, mpirun or srun wrote them, and the reports of their option ``-J``.

A log names its binary (``all_reduce_perf``), lists its ranks with their hosts, and has a
table. Which columns stand before the times depends on the version and the operation
(``redop``, ``root``), so the header above the table is asked. The size is that of the
larger buffer of a rank, which is how `Operation` counts it: for all_gather and
reduce_scatter the whole tensor. A report is JSON with the same in lists. Source: NVIDIA/nccl-tests, src/common.cu,
src/util.cu (reports: since October 2025) and doc/PERFORMANCE.md.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from msgspec import Struct, field

from traincast.errors import FormatError, UnknownNameError
from traincast.files import parse_json
from traincast.workload.words import operation_named

# mpirun --tag-output and srun --label mark each line; a mark can stand inside a line, too, where
# a process wrote the line in two pieces.
_MARK = re.compile(r"\[[^\[\]\s,]*+(?<=\d),\d+\]<std(?:out|err)>:?|^[ \t]*+\d++:(?=\s)", re.MULTILINE)
_BINARY = re.compile(
    r"(?<![a-z_])(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf"
)
_RANK = re.compile(
    r"^#\s*Rank\s+([0-9]{1,9})\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$"
)
_HEADER = re.compile(r"^[ \t]*#\s*size\s+count\s+type\b", re.MULTILINE)
_REPORT = re.compile(r'\s*\{"version":\s*\d+,\s*"start_time":[^\[\]{}]*"args":')
_START = re.compile(r"^[ \t]*#\s*nThread:?\s+\d+\s+nGpus:?\s+\d+", re.MULTILINE)
_ROW = re.compile(r"^\s*[0-9]+\s+[0-9]+\s+[a-z]")

ARTEFACT = 1.5
"""Out-of-place over in-place time above which the row is a warm-up artefact.

The two agree within 7 % (95th percentile of the A100 logs in github.com/NetX-lab/Echo), where
artefacts are off by 1.6 to 13 times.
"""


class _Test(Struct):
    """What the log says about one run of a binary."""

    op: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    """Host of each rank in the first communicator."""
    group: str | None = None
    gpu: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    """Line and fields of each timing; in a report its place in the list."""
    is_report: bool = False

    def positions(self, name: str) -> list[int]:
        """Return where the columns of a name stand; of times the first is out of place, the second in place."""
        return [position for position, column in enumerate(self.columns) if column == name]

    @property
    def times(self) -> list[int]:
        """Where the times stand, those of the host where no others do."""
        return self.positions("time") or self.positions("cputime")


def is_nccl_log(text: str) -> bool:
    """Say whether a text is, or begins like, a log or report of nccl-tests."""
    if _REPORT.match(text):
        return True
    plain = _MARK.sub("", text)
    return bool(_HEADER.search(plain) or _START.search(plain))


def read_nccl_log(text: str, path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each timing of a log: its 1-based line, and its cells by the columns of a measurement table.

    These are ``op ranks nodes size_bytes time_us gpu suspect``, without empty ones. The time is the out-of-place one,
    or the in-place one where there is no other. A time far above the in-place one is marked as suspect, and so is a row
    that was cut short. Several tests may follow each other in a log; where it does not say the operation, the name of
    the file or else the figures do.

    Raises
    ------
    FormatError
        If there is no timing, or the log does not say operation or ranks.
    """
    tests = _tests_of_report(text, path) if _REPORT.match(text) else _tests(text, path)
    if not any(test.rows for test in tests):
        raise FormatError("the log of nccl-tests holds no timings", path)
    for test in tests:
        op = test.op or _operation_of_file(path) or _operation_of_figures(test)
        if op is None and test.rows:
            what = "keep the command in it, or name the file after it (all_gather.log)"
            raise FormatError(f"the log does not name its operation; {what}", path, test.rows[0][0])
        for line, fields in test.rows:
            named = {"id": f"{path}[{line}]"} if test.is_report else {}
            yield line, named | _cells(op or "", test, fields)


def _tests(text: str, path: str) -> list[_Test]:
    """Return the tests of a log in their order."""
    tests = [_Test()]
    op = None
    # Marks are taken away line by line, so that lines keep their numbers.
    for line, raw in enumerate(text.splitlines(), start=1):
        content, test = _MARK.sub("", raw).strip(), tests[-1]
        if _ROW.match(content):
            if not test.hosts or not test.times:
                what = "the columns (# size count type ...)" if test.hosts else "the ranks (# Rank ...)"
                raise FormatError(f"a timing stands before the lines that list {what}", path, line)
            test.op = op
            test.rows.append((line, content.split()))
        elif binary := _BINARY.search(content):
            op = binary[1]
        elif _HEADER.match(content):
            test.columns = content.lstrip("# ").split()
        elif rank := _RANK.match(content):
            if test.rows:
                tests.append(_Test())
            _add_rank(rank, tests[-1], path, line)
    return tests


_REPORT_COLUMNS = ["size", "count", "type", "redop", "root", *(["", "algbw", "busbw", "#wrong"] * 2)]


def _tests_of_report(text: str, path: str) -> list[_Test]:
    """Return the one test of a report; a row is named by its place in the list of results."""
    document = parse_json(text, path)
    try:
        config, results = document["config"], document["results"]  # type: ignore[index]
        test = _Test(op=_operation_of_command(document["args"]), is_report=True)  # type: ignore[index]
        of = {name for row in results for part in _PLACES if row.get(part) for name in row[part]}
        test.columns = [name or ("cputime" if "cpu_time" in of else "time") for name in _REPORT_COLUMNS]
        for device in config["devices"]:
            if device["group"] == config["devices"][0]["group"]:
                test.hosts[int(device["rank"])], test.gpu = str(device["hostname"]), str(device["device_info"])
        for number, row in enumerate(results):
            test.rows.append((number, [str(row[name]).strip() for name in _REPORT_COLUMNS[:5]]))
            for part in _PLACES:
                found = row.get(part) or {}
                measured = [found.get("time", found.get("cpu_time")), *map(found.get, ("alg_bw", "bus_bw", "nwrong"))]
                test.rows[-1][1].extend(map(_as_in_log, measured))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"is not a complete report of nccl-tests: {type(error).__name__} {error}", path) from None
    return [test]


_PLACES = ("out_of_place", "in_place")


def _as_in_log(value: object) -> str:
    """Return a value of a report as a log has it: counts of wrong values are whole there."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "N/A" if value is None else str(value)


def _operation_of_command(words: Sequence[object]) -> str | None:
    """Return the operation that a command line is of."""
    found = _BINARY.search(" ".join(map(str, words)))
    return found[1] if found else None


def _add_rank(rank: re.Match[str], test: _Test, path: str, line: int) -> None:
    """Take in one line of the list of ranks."""
    number, group, host, test.gpu = int(rank[1]), rank[2], rank[3], rank[4]
    if not test.hosts:
        test.group = group
    elif group != test.group:
        # NCCL_TESTS_SPLIT makes several equal communicators; the times are those of one.
        return
    if number in test.hosts:
        raise FormatError(
            f"rank {number} is listed twice: a build without MPI runs each process alone (make MPI=1)", path, line
        )
    test.hosts[number] = host


def _operation_of_file(path: str) -> str | None:
    """Return the operation that the name of a file holds: ``all_reduce-8xh100.log``; None where it holds none."""
    letters = re.sub(r"[^a-z]", "", PurePath(path).name.lower())
    names = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv", "hypercube")
    # These stand in other names and in plain words too, so they must be a word of the file's name.
    words = set(re.split(r"[^a-z]+", PurePath(path).name.lower())) & {"reduce", "gather", "scatter"}
    return next((name for name in names if name in letters), next(iter(sorted(words)), None))


def _operation_of_figures(test: _Test) -> str | None:
    """Return the operation that the figures of a nameless log give away; None where there are several.

    What reduces to all ranks is an all_reduce if its bus bandwidth is 2 (n-1)/n of the
    algorithm's bandwidth, and a reduce_scatter if it is (n-1)/n.
    """
    # Of two columns of a name the first counts: out of place.
    cells = [dict(reversed(list(zip(test.columns, fields, strict=False)))) for _, fields in test.rows]
    if any(cell.get("redop", "none") == "none" or cell.get("root", "-1") != "-1" for cell in cells):
        return None
    try:
        algbw, busbw = max((float(cell["algbw"]), float(cell["busbw"])) for cell in cells)
    except (KeyError, ValueError):
        return None
    ranks = len(test.hosts)
    if ranks < 2 or not algbw:
        return None
    share = busbw / algbw / ((ranks - 1) / ranks)
    return {1: "reduce_scatter", 2: "all_reduce"}.get(round(share)) if abs(share - round(share)) < 0.1 else None


def _cells(op: str, test: _Test, fields: list[str]) -> dict[str, str]:
    """Return a timing by the columns of a measurement table."""
    positions = test.times
    whole = len(fields) > positions[-1]
    times = [fields[position] if whole else "N/A" for position in positions]
    cells = {
        "op": op,
        "ranks": str(len(test.hosts)),
        "nodes": str(len(set(test.hosts.values()))),
        "size_bytes": fields[0],
        "time_us": next((time for time in times if time != "N/A"), "N/A"),
        "gpu": test.gpu,
        "suspect": _suspicion(op, fields, times, [fields[at] for at in test.positions("#wrong") if at < len(fields)])
        if whole
        else f"the row has {len(fields)} fields; it was cut short or mixed with another",
    }
    if whole and not test.positions("time"):
        cells["suspect"] = "the times are those of the host (-C 1)"
    return {name: cell for name, cell in cells.items() if cell}


def _suspicion(op: str, fields: list[str], times: list[str], checks: list[str]) -> str:
    """Return why a row is not to be trusted, or nothing.

    Of its checks only ``#wrong`` counts values; ``error`` of older versions is the largest deviation, and rounding
    alone gives one.
    """
    wrong = max((check for check in checks if check.isdecimal() and check.strip("0")), key=len, default="")
    if wrong:
        return f"the check found wrong results: {wrong} values (#wrong)"
    if not fields[0].strip("0"):
        return "no bytes are moved"
    try:
        operation_named(op)
    except UnknownNameError:
        return f"{op} is not an operation that can be estimated"
    try:
        out_of_place, in_place = map(float, times)
        known = math.isfinite(out_of_place) and math.isfinite(in_place)
    except ValueError:
        # One of the two was not run; or it is damaged, and who reads the number says so.
        return ""
    if known and out_of_place > ARTEFACT * in_place:
        return f"warm-up artefact: {out_of_place:g} us out of place, {in_place:g} us in place"
    return ""
