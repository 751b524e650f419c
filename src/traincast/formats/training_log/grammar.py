"""Read a training log: its steps in order, and what it says of the run.

Launchers put a rank before each line (``[rank0]:``, ``[default7]:``, ``0: ``, ``[1,0]<stdout>:``), schedulers a time;
several ranks may print each step into one file, and a run may be started again in it. The lines themselves are those of
`traincast.formats.training_log.frameworks`; all others are passed over, but for what tells that something else than
training was done before a step.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import FileWarnings, Note
from traincast.errors import ConfigError, FormatError
from traincast.formats.training_log.frameworks import (
    BRIDGE,
    FACTS,
    FRAMEWORKS,
    GPU_NAME,
    INTERRUPTION,
    MEGATRON,
    MESH,
    SENTENCES,
    Framework,
)
from traincast.formats.training_log.sniff import COLOURS
from traincast.formats.values import check_lines, shown
from traincast.units import RANGES, is_number, plain_number

MOST_LINES = 2**22
"""Lines of a log: some ten seconds of reading."""

_TAG = re.compile(r"\s*(\[(?:rank|default)\d+\]:|\d+:(?=\s)|\[\d+,\d+\]<\w+>:?|\[[\w.-]+-\d+\]|[\w.-]+/\d+(?=\s))")
"""How launchers mark the rank of a line: torchrun, srun --label, mpirun --tag-output, Kubernetes, NeMo-Run."""
_STARTS = re.compile(r"Training starts at step|before the start of training step|(?<!-)-{10,}+ arguments -{10,}")
_SETTING = re.compile(rf"""[\s"']*({"|".join(FACTS.values())})["']?\s*(?:\.{{2,}}|[:=])\s*(\d{{1,12}})\s*,?\s*$""")
_ARGUMENT = re.compile(r"(?:^|\s)([a-z]\w*) \.{2,} (.*)$")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_OF_INTERRUPTIONS = ("alidat", "heckpoint", "valuat", "aving")
_OF_STARTS = ("raining st", "start of training", " arguments ")
"""Words of lines that are worth a closer look; most are not."""
_ROUNDING_S = 0.0051
"""Half a unit of the last digit of Megatron-Bridge's ``Step Time``, and what a float adds."""
_LONGEST_LINE = 20_000


class Step(Struct, frozen=True, kw_only=True):
    """What one line says, or those of several ranks together, of the step that it names and those before it."""

    line: int
    """1-based line of the first of them."""
    number: int
    """Number of the step, over all epochs."""
    start: int
    """Which start of the run it belongs to, from 0."""
    steps: int | None
    """Steps since the line before, of which it tells the mean; None where that is not known."""
    time_s: float | None = None
    """Mean time of a step."""
    tokens_per_s: float | None = None
    """Per GPU."""
    flops_per_s: float | None = None
    """Per GPU, as the framework counts them."""
    global_batch: int | None = None
    """Sequences of a step."""
    loss: float | None = None
    clock_s: float | None = None
    """When it was printed, from any origin."""
    interrupted: bool = False
    """Whether an evaluation or a checkpoint came between the line before and this one."""


class TrainingLog(Struct, frozen=True, kw_only=True):
    """What a whole log says."""

    path: str
    framework: Framework
    steps: tuple[Step, ...]
    """In the order of starts and numbers."""
    facts: Mapping[str, int | str]
    """Facts of the run, by the keys of `FACTS`, and ``tokens`` of a step and ``gpu``."""
    ranks: int
    """Ranks that printed steps."""
    planned: int | None
    """Steps that the run was to have."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Arguments that Megatron-LM lists before its first step, as they stand."""
    warnings: tuple[Note, ...] = ()

    @property
    def starts(self) -> int:
        """How often the run was started."""
        return 1 + max(step.start for step in self.steps)


class _Utilisation(NamedTuple):
    """A line of Megatron-Bridge's first rank."""

    line: int
    values: dict[str, Any]
    interrupted: bool


class _Stream(Struct):
    """What one rank printed so far."""

    number: int = 0
    epoch: int = 0
    base: int = 0
    start: int = 0
    fresh: bool = True
    """Whether nothing was printed since the start."""


class _Reader(Struct):
    path: str
    warnings: FileWarnings
    framework: Framework | None = None
    streams: dict[str, _Stream] = field(default_factory=lambda: defaultdict(_Stream))
    found: dict[tuple[int, int], list[Step]] = field(default_factory=lambda: defaultdict(list))
    utilisation: list[_Utilisation] = field(default_factory=list)
    facts: dict[str, int | str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    planned: int | None = None
    starter: str | None = None
    """Who prints the first line of a start; others say it too, perhaps later."""
    interrupted: bool = False
    settings_follow: bool = True
    """Whether no step was printed since the start: settings come first, and most lines of a log after them."""
    heads: Counter[str] = field(default_factory=Counter)

    def take(self, number: int, text: str) -> None:
        """Take in one line."""
        framework = next((each for each in FRAMEWORKS if each.mark in text and each.stands_in(text)), None)
        if framework is not None:
            self._step(number, text, framework)
        elif any(word in text for word in _OF_INTERRUPTIONS) and INTERRUPTION.search(text):
            self.interrupted = True
        else:
            self._setting(text)

    def _step(self, number: int, text: str, framework: Framework) -> None:
        values = _values(text, framework, (self.path, number))
        head = framework.head.search(text)
        timed = values.keys() & {"time_s", "tokens_per_s"}
        if head is None or not (timed or "clock" in head.groupdict()):
            self.warnings.add("step-cut", f"a line of a step as {framework.title} prints it cannot be read", number)
            return
        self.heads[framework.name] += 1
        self.settings_follow = False
        if framework is BRIDGE:
            self.utilisation.append(_Utilisation(number, values, self.interrupted))
            return
        tag = _TAG.match(text)
        stream = self.streams[tag[1] if tag else ""]
        groups = head.groupdict()
        step, epoch = int(groups["step"]) + 1 - framework.first_step, int(groups.get("epoch") or 0)
        self._advance(stream, step, epoch)
        if groups.get("steps"):
            self.planned = max(self.planned or 0, int(groups["steps"]) + 1 - framework.first_step)
        batch = values.pop("global_batch", None)
        found = Step(
            line=number,
            number=stream.number,
            start=stream.start,
            steps=None,
            clock_s=_clock_s(groups.get("clock"), text[: head.start()]),
            global_batch=None if batch is None else round(batch),
            interrupted=self.interrupted,
            **values,
        )
        self.found[stream.start, stream.number].append(found)
        self.interrupted = False

    def _advance(self, stream: _Stream, step: int, epoch: int) -> None:
        """Set the number of a stream's step and the start that it belongs to."""
        if epoch > stream.epoch and not stream.fresh:
            stream.base = stream.number
        stream.epoch = max(epoch, stream.epoch)
        number = stream.base + step
        if number < stream.number:
            stream.base, stream.epoch, number = 0, epoch, step
            stream.start += 1
        stream.number, stream.fresh = number, False

    def _setting(self, text: str) -> None:
        """Take in what a line says of the run."""
        if any(word in text for word in _OF_STARTS) and _STARTS.search(text):
            self.settings_follow = True
            tag = _TAG.match(text)
            who = tag[1] if tag else ""
            self.starter = who if self.starter is None else self.starter
            if who == self.starter:
                for stream in self.streams.values():
                    if not stream.fresh:
                        stream.start, stream.fresh, stream.number, stream.base = stream.start + 1, True, 0, 0
        if self.settings_follow:
            if argument := _ARGUMENT.search(text):
                self.settings.setdefault(argument[1], argument[2].strip())
            for name, value in _facts_of(text).items():
                self.facts.setdefault(name, value)


def parse(path: str, text: str) -> TrainingLog:
    """Read the text of a log; `path` is where it came from, for messages.

    Raises
    ------
    FormatError
        If no line tells a step, or there are too many lines.
    """
    check_lines(text, path, MOST_LINES)
    reader = _Reader(path, FileWarnings(path))
    for number, line in enumerate(COLOURS.sub("", text).removeprefix("\ufeff").split("\n"), 1):
        for part in line.split("\r"):
            if part and len(part) <= _LONGEST_LINE:
                reader.take(number, part)
    steps = _with_spans(_of_all_ranks(reader))
    if not steps:
        known = ", ".join(each.title for each in FRAMEWORKS)
        raise FormatError(f"no line tells the time of a step as {known} print it; was the log cut before it?", path, 1)
    first = next(each for each in FRAMEWORKS if each.name == reader.heads.most_common(1)[0][0])
    bridge = BRIDGE.name in reader.heads and MEGATRON.name in reader.heads
    return TrainingLog(
        path=path,
        framework=BRIDGE if bridge else first,
        steps=steps,
        facts=reader.facts,
        ranks=max(1, len(reader.streams)),
        planned=reader.planned,
        settings=reader.settings,
        warnings=reader.warnings.notes(),
    )


def _values(text: str, framework: Framework, place: tuple[str, int]) -> dict[str, Any]:
    """Return the numbers of a line in SI; a wrong time, rate or batch is a FormatError."""
    found: dict[str, Any] = {}
    for name, quantity in framework.quantities.items():
        match = quantity.pattern.search(text)
        if match is None:
            continue
        written = match[1].strip(",.").replace(",", "")
        if name == "loss":
            # A loss may well be NaN; nothing is made of it.
            found[name] = float(written) if is_number(written) else math.nan
            continue
        kind = RANGES[_KINDS.get(name, "figure")]
        try:
            value = kind.checked(plain_number(written) * quantity.factor if is_number(written) else written)
        except ConfigError as error:
            raise FormatError(f"{shown(match[0])}: {error}", *place) from None
        # NeMo prints no FLOP/s, and torchtitan no tokens, of a step that it could not time.
        if value > 0:
            # time_ms and time_s are one field in two units.
            found["time_s" if name == "time_ms" else name] = value
        elif name.startswith("time"):
            raise FormatError(f"{shown(match[0])}: a step takes time", *place)
    return found


_KINDS = {"time_s": "time", "time_ms": "time", "global_batch": "count"}


def _clock_s(elapsed: str | None, before: str) -> float | None:
    """Return when a line was printed: what a progress bar says to have elapsed, or the date before the line."""
    if elapsed is not None:
        seconds = 0
        for part in elapsed.split(":"):
            seconds = 60 * seconds + int(part)
        return float(seconds)
    date = _DATE.search(before)
    if date is None:
        return None
    try:
        whole = datetime.fromisoformat(f"{date[1]}T{date[2]}+00:00").timestamp()
    except ValueError:
        return None
    return whole + float(f"0.{date[3] or 0}")


def _facts_of(text: str) -> dict[str, int | str]:
    """Return what a line says of the run, by the keys of `FACTS`."""
    tag = _TAG.match(text)
    setting = _SETTING.match(text, tag.end() if tag else 0)
    if setting is not None:
        name = next(name for name, words in FACTS.items() if re.fullmatch(words, setting[1]))
        return {name: int(setting[2])} if int(setting[2]) > 0 else {}
    for sentence in SENTENCES:
        if match := sentence.search(text):
            told = {name: int(value) for name, value in match.groupdict().items() if value}
            return _with_world(told)
    if match := GPU_NAME.search(text):
        return {"gpu": match["gpu"]}
    if match := MESH.search(text):
        names = re.findall(r"\w+", match["names"])
        sizes = list(map(int, re.findall(r"\d{1,12}", match["sizes"])))
        if len(names) == len(sizes):
            told = {name: size for name, size in zip(names, sizes, strict=True) if name in ("tp", "pp", "cp")}
            return {**told, "gpus": math.prod(sizes)}
    return {}


def _with_world(told: dict[str, Any]) -> dict[str, int | str]:
    """Return facts with the GPUs that torchtitan's degrees make; ep is not a dimension of its own."""
    if "dp_shard" not in told:
        return told
    replicas = told.pop("dp_replicate") * told.pop("dp_shard")
    return {**told, "gpus": replicas * told["pp"] * told["cp"] * told["tp"]}


def _of_all_ranks(reader: _Reader) -> list[Step]:
    """Return the steps in order, what several ranks printed of one as its median."""
    steps = [_middle(reader.found[key]) for key in sorted(reader.found)]
    if not steps:
        return [
            Step(line=each.line, number=number, start=0, steps=None, interrupted=each.interrupted, **each.values)
            for number, each in enumerate(reader.utilisation, 1)
        ]
    return _with_utilisation(steps, reader.utilisation)


def _middle(lines: Sequence[Step]) -> Step:
    if len(lines) == 1:
        return lines[0]

    def middle(name: str) -> float | None:
        known = [value for each in lines if (value := getattr(each, name)) is not None]
        return median(known) if known else None

    names = ("time_s", "tokens_per_s", "flops_per_s", "loss", "clock_s")
    middles: dict[str, Any] = {name: middle(name) for name in names}
    return replace(lines[0], interrupted=any(each.interrupted for each in lines), **middles)


def _with_utilisation(steps: list[Step], lines: Sequence[_Utilisation]) -> list[Step]:
    """Give each step without FLOP/s those of the nearest ``Step Time`` line that says the same time.

    Two ranks print the two lines, so that either may stand first.
    """
    found, left = list(steps), list(lines)
    for index, step in enumerate(found):
        if not left or step.time_s is None or step.flops_per_s is not None:
            continue
        # Both are in the order of the log: what stands well before this step belongs to none.
        near = min(left[:3], key=lambda each: abs(each.line - step.line))
        if abs(near.values.get("time_s", math.inf) - step.time_s) <= _ROUNDING_S:
            found[index] = replace(step, flops_per_s=near.values.get("flops_per_s"))
            del left[: left.index(near) + 1]
    return found


def _with_spans(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return steps with the number of steps since the line before."""
    found: list[Step] = []
    for step in steps:
        before = found[-1] if found and found[-1].start == step.start else None
        if before is None:
            # The first line of a log that begins with the run is of the first step alone.
            found.append(replace(step, steps=1 if step.number == 1 else None))
        else:
            found.append(replace(step, steps=step.number - before.number))
    return tuple(found)
