"""Hugging Face's Trainer: its progress bar with the dictionaries between, and ``trainer_state.json``.

src/transformers/trainer_callback.py: ``ProgressCallback`` (a bar of tqdm without a title, and ``tqdm.write`` of what is
logged), ``PrinterCallback``; src/transformers/trainer.py: ``Trainer.log`` appends the same with ``step`` to
``TrainerState.log_history``; src/transformers/trainer_utils.py: ``speed_metrics``. None of them says the time of a
step: it follows from the clock of the bar, from ``train_runtime`` where it is logged as training goes
(``include_num_input_tokens_seen``), or is the mean of the whole training. What a callback logs in addition counts by
its name (`traincast.formats.training_log.columns`).
"""

import json
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from traincast.formats.training_log.columns import Names
from traincast.formats.training_log.contract import Dialect, Found, no_lines
from traincast.formats.training_log.printed import elapsed_s
from traincast.units import is_number

_BAR = re.compile(
    r"(?:^|[\]:>\s])\d{1,3}%\|[^|]{0,400}\|\s{0,9}(?P<step>\d{1,12})/(?P<steps>\d{1,12}) "
    r"\[(?P<clock>\d[\d:]{0,11})<[^\]]{0,99}\]"
)
_PAIR = re.compile(r"'([^']{1,80})': '?([-+]?[\d.]+(?:[eE][-+]?\d+)?)'?(?=[,}])")
_TOTAL = re.compile(r"Total optimization steps = ([\d,]{1,15})")
_TITLE = re.compile(r"[A-Za-z)]: *$")
"""What stands before a bar that has a title: it is of data, of checkpoints, of generation."""
_NOT_OF_STEPS = ("train_runtime", "train_steps_per_second", "train_samples_per_second")
"""Of the whole training, in what is logged at its end."""


class _Console(Struct):
    """What was printed so far."""

    total: int = 0
    """Steps that the training is to have; 0 where that was not specified."""
    number: int = 0
    """The last step that a bar showed."""
    shown: str = ""
    """Of how many, as it stood there."""

    def __call__(self, text: str) -> Found | None:
        if announced := _TOTAL.search(text):
            self.total = int(announced[1].replace(",", ""))
            return None
        bar = _BAR.search(text)
        if bar is not None and _TITLE.search(text[: bar.start() + 1]) is None:
            return self._shown(bar)
        begin = text.find("{'")
        return None if begin < 0 else self._logged(dict(_PAIR.findall(text, begin)))

    def _shown(self, bar: re.Match[str]) -> Found | None:
        """Return what a state of the bar says; bars of evaluations have no title either."""
        steps = int(bar["steps"])
        if self.total and steps != self.total:
            return None
        self.number, self.shown = int(bar["step"]), bar["steps"]
        values = {"clock_s": elapsed_s(bar["clock"])}
        return Found(values=values, number=self.number, planned=steps, series=self.shown)

    def _logged(self, told: Mapping[str, str]) -> Found | None:
        """Return what is logged of the step that the bar shows, or of the whole training where there is no bar."""
        if not self.number and {"train_runtime", "train_steps_per_second"} <= told.keys():
            return _whole(float(told["train_runtime"]), float(told["train_steps_per_second"]))
        if "loss" not in told:
            return None
        values = {name: value for name, value in told.items() if name not in _NOT_OF_STEPS}
        found = Names((*values, "step")).found({"step": self.number or None, **values})
        return None if found is None else replace(found, series=self.shown)


def _whole(runtime_s: float, steps_per_s: float) -> Found | None:
    """Return the mean of a whole training, of which nothing else is known."""
    steps = round(runtime_s * steps_per_s)
    if steps < 1:
        return None
    return Found(values={"step_s": runtime_s / steps}, number=steps, planned=steps, steps=steps)


def is_document(head: str) -> bool:
    """Say whether a file begins like a document with a list of entries, and not like lines of objects."""
    begin = head.lstrip("\ufeff \t\r\n")
    if begin.startswith("["):
        return begin[1:].lstrip().startswith("{") and Names(dict(_first(begin))).tell_steps
    return begin.startswith("{") and '"log_history"' in begin


def _first(text: str) -> Mapping[str, object]:
    """Return the first entry of a list; nothing where it is none."""
    _, first = next(_entries(text), (0, None))
    return first or {}


def entries_of_state(text: str) -> Iterator[tuple[int, Found | None]]:
    """Yield what each entry of a ``trainer_state.json`` says of a step, with its line; None is one that was cut."""
    entries = list(_entries(text))
    known = [each for _, each in entries if isinstance(each, dict)]
    clocked = sum("train_runtime" in each for each in known) > 1
    planned = re.search(r'"max_steps":\s*(\d{1,12})', text)
    for line, each in entries:
        if not isinstance(each, dict):
            yield line, None
            continue
        values = {name: value for name, value in each.items() if clocked or name not in _NOT_OF_STEPS}
        found = Names(values).found(values)
        if found is None and not clocked and is_number(str(each.get("train_runtime"))):
            steps = each.get("step")
            if isinstance(steps, int) and steps > 0 and float(each["train_runtime"]) > 0:
                mean = {"step_s": float(each["train_runtime"]) / steps}
                found = Found(values=mean, number=steps, steps=steps)
        if found is not None:
            yield (
                line,
                Found(
                    values=found.values,
                    number=found.number,
                    steps=found.steps,
                    planned=int(planned[1]) if planned else None,
                    framework=found.framework,
                ),
            )


def _entries(text: str) -> Iterator[tuple[int, Mapping[str, object] | None]]:
    """Yield the entries of a list of objects in a document, with their lines; None where the document ends in one."""
    decoder, at = json.JSONDecoder(), text.find("[", max(0, text.find('"log_history"')))
    line, counted = 1, 0
    while 0 <= at < len(text):
        at = re.compile(r"[\s,\[]*").match(text, at).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]":
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield line, None
            return
        yield line, value if isinstance(value, dict) else {}


TRAINER = Dialect(
    name="hugging-face",
    title="Hugging Face's Trainer",
    example="10%|... | 100/1000 [01:05<09:45, 1.54it/s], {'loss': 2.5, ...}",
    marks=("it/s]", "s/it]", "'loss'", "'train_runtime'", "Total optimization steps"),
    opened=_Console,
)
STATE = Dialect(
    name="trainer-state",
    title="a document with a list of steps (trainer_state.json)",
    example='"log_history": [{"step": 10, "train_runtime": 12.5, ...}]',
    marks=(),
    opened=no_lines,
)
