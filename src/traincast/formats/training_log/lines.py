"""Read a log line by line: what each says of a step, and what all of them say of the run.

Launchers put a rank before each line (``[rank0]:``, ``[default7]:``, ``0: ``, ``[1,0]<stdout>:``), schedulers a time;
several ranks may print each step into one file, and a run may be started again in it. The lines themselves are those of
`traincast.formats.training_log.dialects`; all others are passed over, but for what tells of the run, or that something
else than training was done before a step.
"""

import re
from collections import Counter
from datetime import datetime

import numpy as np
from msgspec.structs import replace

from traincast.diagnostics import FileWarnings
from traincast.errors import FormatError
from traincast.formats.training_log.assembly import Assembly, StepLine
from traincast.formats.training_log.contract import TIMES, CutError, Dialect, Found, RunsError, WrongError
from traincast.formats.training_log.dialects import CSV, DIALECTS, dialect_of
from traincast.formats.training_log.dialects.tables import is_header
from traincast.formats.training_log.facts import TAG, WORDS, facts_of_line, interrupts, settings_of_line, starts
from traincast.formats.training_log.record import Steps, TrainingLog
from traincast.formats.training_log.sniff import COLOURS, LONGEST_LINE

_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_FEWEST_OF_CLOCK = 12
"""Times of steps that rise from each to the next so often are none: of noise alone one in 12! does."""
_DATE_WITHIN = 80
"""Characters of a line in which a date is when it was printed."""


class LogLines:
    """Takes the lines of a log one by one: `feed` says what each tells, `log` what all of them do.

    Parameters
    ----------
    path : str
        Where they come from, for messages.
    keep : bool
        Whether steps are kept for `log`; without, memory stays the same however long the log is.
    dialects : sequence of Dialect

    Examples
    --------
    >>> from traincast.formats.training_log.lines import LogLines
    >>> lines = LogLines("run.log")
    >>> point = lines.feed("iteration 20/ 100 | elapsed time per iteration (ms): 2001.5 | global batch size: 128 |")
    >>> point.step, point.values["step_s"]
    (20, 2.0015)
    """

    def __init__(self, path: str, *, keep: bool = True, dialects: tuple[Dialect, ...] = DIALECTS) -> None:
        self.path, self.number = path, 0
        self.warnings = FileWarnings(path)
        self.assembly = Assembly(path=path, warnings=self.warnings, keep=keep)
        self.settings: dict[str, dict[str, str]] = {}
        """By whose they are."""
        self._readers = [(each.marks, each, each.opened()) for each in dialects]
        self._heads: Counter[str] = Counter()
        self._facts: list[dict[str, int | str]] = [{}]
        """What was said of each start of the run."""
        self._starter: str | None = None
        """Who prints the first line of a start; others say it too, perhaps later."""
        self._settings_follow = True
        """Whether no step was printed since the start: settings come first, and most lines of a log after them."""
        self._wrong: tuple[str, int] | None = None
        self._wrote: Counter[str] = Counter()
        """Frameworks whose figures others wrote down."""
        self._begun = False
        self._doubtful = 0
        """Lines whose time may be that since the beginning."""

    @property
    def words(self) -> tuple[str, ...]:
        """Texts of which a line has one unless nothing is lost with it; none where every line may say something."""
        if self._settings_follow:
            return ()
        return (*(mark for marks, _, _ in self._readers for mark in marks), *WORDS)

    def feed(self, text: str, number: int | None = None) -> StepLine | None:
        """Take in one line, of this 1-based number (default: the next); return what it says of a step.

        Of several ranks that print each step, that is what the first one says. Nothing comes back for other lines, and
        for those of steps that cannot be read: these are among the warnings.

        Raises
        ------
        FormatError
            If the rows of a table are of several runs.
        """
        self.number = self.number + 1 if number is None else number
        if "\x1b" in text:
            text = COLOURS.sub("", text)
        if not self._begun and text.strip():
            self._begun = True
            if is_header(text):
                self._readers = [(CSV.marks, CSV, CSV.opened())]
        for marks, dialect, read in self._readers:
            if not _has_one(text, marks):
                continue
            try:
                found = read(text) if len(text) <= LONGEST_LINE else self._too_long()
            except RunsError as error:
                raise FormatError(str(error), self.path, self.number) from None
            except (CutError, WrongError) as error:
                self._pass_over(dialect, error)
                return None
            if found is not None:
                return self._step(text, dialect, found)
        if interrupts(text):
            self.assembly.interrupted = True
        else:
            self._setting(text)
        return None

    def _too_long(self) -> Found | None:
        text = f"a line has more than {LONGEST_LINE:,} characters and is passed over"
        self.warnings.add("long-line", text, self.number)
        return None

    def _pass_over(self, dialect: Dialect, error: ValueError) -> None:
        """Note a line of a step that cannot be read."""
        if isinstance(error, CutError):
            text = f"a line of a step as {dialect.title} prints it cannot be read"
            self.warnings.add("step-cut", text, self.number)
        else:
            self._wrong = self._wrong or (str(error), self.number)
            self.warnings.add("step-wrong", f"a line of a step is passed over: {error}", self.number, kind="")

    def _step(self, text: str, dialect: Dialect, found: Found) -> StepLine | None:
        if found.number is None and not found.values.keys() & {*TIMES}:
            self.assembly.amend_memory(found.values["memory_bytes"])
            return None
        self._settings_follow = False
        tag = TAG.match(text)
        if "clock_s" not in found.values and (clock_s := _clock_s(text[:_DATE_WITHIN])) is not None:
            found = replace(found, values={**found.values, "clock_s": clock_s})
        return self.take(dialect, found, tag[1] if tag else "")

    def take(self, dialect: Dialect, found: Found, rank: str = "", number: int | None = None) -> StepLine | None:
        """Take in what is already known to be of a step, such as an entry of a document, as `feed` does a line."""
        self.number = self.number if number is None else number
        self._heads[dialect.name] += 1
        self._doubtful += found.doubtful
        if found.framework:
            self._wrote[found.framework] += 1
        return self.assembly.take(found, rank, self.number)

    def _setting(self, text: str) -> None:
        """Take in what a line says of the run."""
        if starts(text):
            self._settings_follow = True
            tag = TAG.match(text)
            who = tag[1] if tag else ""
            self._starter = who if self._starter is None else self._starter
            if who == self._starter:
                self.assembly.restart()
                if self._heads:
                    self._facts.append({})
        if self._settings_follow:
            if listed := settings_of_line(text):
                of = self.settings.setdefault(listed[0], {})
                for setting, written in listed[1].items():
                    of.setdefault(setting, written)
            for name, value in facts_of_line(text).items():
                self._facts[-1].setdefault(name, value)

    @property
    def facts(self) -> dict[str, int | str]:
        """What was said of the run so far; of several starts what the first says."""
        return {name: value for each in reversed(self._facts) for name, value in each.items()}

    def log(self) -> TrainingLog:
        """Return what all lines say.

        Raises
        ------
        FormatError
            If none tells a step, with what was looked for; or lines of two runs are mixed.
        """
        if not self._heads:
            raise self._nothing()
        self._tell_other_runs()
        like = max(self.settings, key=lambda each: len(self.settings[each]), default="")
        return TrainingLog(
            path=self.path,
            framework=self._framework(),
            steps=self._steps(),
            facts=self.facts,
            ranks=self.assembly.ranks,
            planned=self.assembly.planned,
            settings=self.settings.get(like, {}),
            settings_like=like,
            warnings=self.warnings.notes(),
        )

    def _steps(self) -> Steps:
        """Return the steps; times that do nothing but rise, under a name that says not of what, are of a clock."""
        steps = self.assembly.steps()
        if self._doubtful < _FEWEST_OF_CLOCK or not (np.diff(steps.step_s) > 0).all():
            return steps
        text = "the column time only rises: it is taken for the time since the beginning, and steps for its differences"
        self.warnings.add("time-is-clock", text, int(steps.line[0]))
        return steps.select(slice(None), clock_s=steps.step_s, step_s=np.full(len(steps), np.nan))

    def _framework(self) -> Dialect:
        """Return whose lines most are, with what its figures mean."""
        names = [name for name, _ in self._heads.most_common()]
        # Megatron-Bridge prints Megatron-LM's lines too.
        bridge = {"megatron-bridge", "megatron"} <= {*names}
        dialect = dialect_of("megatron-bridge" if bridge else names[0])
        wrote = dialect_of(self._wrote.most_common(1)[0][0]) if self._wrote else None
        return dialect if wrote is None else replace(dialect, flops=wrote.flops, memory=wrote.memory)

    def _nothing(self) -> FormatError:
        if self._wrong is not None:
            return FormatError(self._wrong[0], self.path, self._wrong[1])
        known = "; ".join(f"{each.title}: {each.example}" for _, each, _ in self._readers)
        return FormatError(
            f"no line tells the time of a step; was the log cut before it? Looked for {known}", self.path, 1
        )

    def _tell_other_runs(self) -> None:
        """Note where a later start says of the run what the first says otherwise."""
        for later in self._facts[1:]:
            for name, value in later.items():
                first = self.facts[name]
                if value != first:
                    text = f"a later start is of another run: {name} is {value}, and {first} in the first"
                    self.warnings.add("another-run", text, self.number)


def _has_one(text: str, marks: tuple[str, ...]) -> bool:
    """Say whether a line has one of some texts."""
    for mark in marks:  # noqa: SIM110 a generator takes longer than what it finds, and every line comes here
        if mark in text:
            return True
    return False


def _clock_s(text: str) -> float | None:
    """Return the date before a line in seconds."""
    date = _DATE.search(text)
    if date is None:
        return None
    try:
        whole = datetime.fromisoformat(f"{date[1]}T{date[2]}+00:00").timestamp()
    except ValueError:
        return None
    return whole + float(f"0.{date[3] or 0}")
