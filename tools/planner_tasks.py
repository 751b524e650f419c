"""Ten tasks that a person does with the planner in the browser, each as its clicks and keys.

A click is a press of the mouse; keys are not counted. Each task ends with what the person wanted to know, read from the
page, and the page as it then is.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MOST_CLICKS, MOST_S = 10, 60.0
"""What a task may take."""
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = {"model": "llama3-70b", "cluster": "h100", "gpus": "512", "seq_length": "8k", "global_batch": "1024"}
START = {**EXAMPLE, "tp": "8", "pp": "4"}
"""The job that the page begins with."""
SMALL = {"model": "llama3-8b", "cluster": "h100", "gpus": "64", "seq_length": "8k", "global_batch": "256", "tp": "2"}
TIGHT = {**EXAMPLE, "tp": "2", "pp": "1"}
"""A job that does not fit into memory."""
SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NNODES=8
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --position-embedding-type rope --vocab-size 128256
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer --overlap-grad-reduce
    --lr 3e-4 --my-own-flag 7
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
"""
"""A script as people start Megatron-LM, with a flag that nobody knows."""
_STEP = "#headline .step"
_ROWS = "#plan-table tbody tr:not(.space)"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}


class Person:
    """Somebody before a page, who clicks and types; clicks are counted."""

    def __init__(self, page: Any, address: str, open_page: Callable[..., Any]) -> None:  # noqa: ANN401
        self.page = page
        self.address = address
        self.open_page = open_page
        self.clicks = 0
        self.begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the task has taken."""
        return time.monotonic() - self.begin

    def click(self, *, css: str = "", button: str = "", item: str = "", text: str = "", within: str = "body") -> None:
        """Press what is named."""
        inside = self.page.locator(within)
        if button or item:
            found = inside.get_by_role("menuitem" if item else "button", name=re.compile(button or item))
        else:
            found = inside.locator(css or ":scope", has_text=text or None)
        found.first.click()
        self.clicks += 1

    def write(self, field: str, text: str) -> None:
        """Press a field of the form, and type into it."""
        self.click(css=f"#field-{field}")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def keys(self, *names: str) -> None:
        """Press keys."""
        for each in names:
            self.page.keyboard.press(each)

    def read(self, css: str, holds: str = "") -> str:
        """Return the text of what is there, once it is, and holds something."""
        found = self.page.locator(css, has_text=re.compile(holds)).first
        found.wait_for()
        return str(found.inner_text())

    def step(self) -> float:
        """Return the step that the page shows, in seconds, once no answer is waited for."""
        self.page.locator("#headline:not(.waiting)").wait_for()
        value, unit = self.read(_STEP, r"\d").replace(",", "").split()
        return float(value) * _SECONDS[unit]

    def after(self, before: float) -> float:
        """Return the step once it is another one."""
        deadline = time.monotonic() + MOST_S
        while (found := self.step()) == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the step stays {before} s")
            self.page.wait_for_timeout(20)
        return found


class Task(NamedTuple):
    """A task."""

    name: str
    """Of its picture."""
    title: str
    state: dict[str, Any]
    """Where it begins."""
    run: Callable[[Person], str]
    """Does it, and returns what the person has found out; raises where the page does not say it."""
    look: str = ""
    """What the picture is of, where that is not the top of the page."""


class Done(NamedTuple):
    """A task that was done."""

    answer: str
    clicks: int
    seconds: float


def _state(view: str, job: dict[str, str], **more: object) -> dict[str, Any]:
    return {"view": view, "scenarios": [{"name": "A", "job": job}], "at": 0, "plan": {}, "look": {}, **more}


def _forecast(person: Person) -> str:
    before = person.step()
    person.write("model", "llama3-8b")
    person.keys("Enter")
    before = person.after(before)
    person.write("gpus", "64")
    before = person.after(before)
    person.write("tp", "2")
    before = person.after(before)
    person.write("pp", "1")
    person.after(before)
    return f"{person.read(_STEP)}, {person.read('#headline .range')}"


def _halve(person: Person) -> str:
    first = now = person.step()
    person.click(button="^Apply: ", within="#advice")
    now = person.after(now)
    person.click(css="#field-gpus")
    while now > first / 2:
        person.keys("ArrowUp")
        now = person.after(now)
    return f"{first:.4g} s became {now:.4g} s with {person.page.input_value('#field-gpus')} GPUs"


def _fit(person: Person) -> str:
    person.read(".problem", "memory")
    person.click(button="Find layouts that fit")
    headline = person.read(".plan-headline", "^Run ")
    person.click(button="Use this layout")
    person.click(button="Forecast it")
    memory = person.read("#headline .figures", "GiB")
    person.step()
    found = re.search(r"[\d.]+ GiB", memory)
    return f"{headline.removeprefix('Run ')}: {found[0] if found else memory}"


def _two_clusters(person: Person) -> str:
    person.page.locator("#scenarios tr.steps td strong").first.wait_for()
    person.click(button="Another cluster")
    person.click(item="^b200")
    person.page.locator("#scenarios tr.steps td strong").nth(1).wait_for()
    steps = person.page.locator("#scenarios tr.steps td").all_inner_texts()
    return "; ".join(" ".join(each.split()) for each in steps)


def _cost(person: Person) -> str:
    person.step()
    person.click(button="Say the tokens of the run")
    person.page.keyboard.type("15T")
    person.write("gpu_hour_price", "2.5")
    person.write("failures", "mtbf=50000h")
    person.keys("Enter")
    person.page.locator("#run dl", has_text="goodput").filter(has_text="cost").wait_for()
    if person.page.input_value("#field-failures") != "mtbf=50000h":
        raise ValueError("the form does not keep what was typed")
    return " ".join(person.read("#run dl").split())[:200]


def _why_not(person: Person) -> str:
    person.read(".plan-headline", "^Run ")
    person.click(css="#plan-table input[type=search]")
    person.page.keyboard.type("TP8")
    person.click(css=f"{_ROWS} th button", text="TP8")
    person.click(button="Why not this one")
    return " ".join(person.read(".layout-why", "Why not this one").split())[:200]


def _straggler(person: Person) -> str:
    person.click(button="megatron_pp4_tp2")
    person.page.locator("#explained-timeline canvas").wait_for()
    rank = person.read("#stragglers tbody tr")
    person.click(button="^Try: ", within="#what-if")
    person.page.locator("#what-if [role=status] table").wait_for()
    return " ".join(rank.split())


def _paste(person: Person) -> str:
    person.click(button="Paste flags")
    person.page.locator("textarea.paste").fill(SCRIPT)
    person.click(button="Fill the form")
    missed = person.read("dialog .missed", "my-own-flag")
    person.click(button="^Done$")
    person.page.wait_for_function("() => window.traincast.app.job.pp === '2'")
    person.step()
    return f"{person.read(_STEP)}; not understood: {' '.join(missed.split())[:80]}"


def _share(person: Person) -> str:
    person.page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    before = person.step()
    person.write("gpus", "1024")
    person.after(before)
    person.click(button="Copy a link")
    person.page.wait_for_function("() => window.copied")
    link = str(person.page.evaluate("() => window.copied"))
    if not link.startswith(person.address):
        raise ValueError(f"{link} is no link to this page")
    there = Person(person.open_page(link), person.address, person.open_page)
    if there.step() != person.step():
        raise ValueError("who opens the link sees something else")
    return f"{len(link)} characters, which show {there.read(_STEP)}"


def _flags(person: Person) -> str:
    person.step()
    person.click(button="Save and export")
    with person.page.expect_download() as download:
        person.click(item="Megatron-LM flags")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    if "--tensor-model-parallel-size 8" not in " ".join(text.split()):
        raise ValueError("the flags do not say the layout")
    return f"{download.value.suggested_filename}, {len(text.splitlines())} lines"


TASKS = (
    Task("forecast", "Forecast a step", _state("forecast", START), _forecast),
    Task("halve", "Halve the time", _state("forecast", SMALL), _halve),
    Task("fit", "Fit in memory", _state("forecast", TIGHT), _fit),
    Task("clusters", "Choose between two clusters", _state("compare", START), _two_clusters),
    Task("cost", "Cost of 15 T tokens with failures", _state("forecast", START), _cost, "#run"),
    Task("why_not", "Why not TP 8?", _state("plan", EXAMPLE), _why_not, "#layout"),
    Task("straggler", "Find the straggler", _state("explain", START), _straggler, "#stragglers"),
    Task("paste", "Paste a Megatron script", _state("forecast", START), _paste),
    Task("share", "Share a link", _state("forecast", START), _share),
    Task("flags", "Export flags", _state("forecast", START), _flags),
)


def done(task: Task, address: str, open_page: Callable[..., Any]) -> tuple[Done, Any]:
    """Do a task on a page of its own; return what was found, and the page.

    Raises
    ------
    ValueError
        If the page does not say what was wanted, or it took too many clicks or too long.
    """
    from planner_page import fragment_of

    # The page is open when a person begins; that it opens quickly is tested elsewhere.
    person = Person(open_page(f"{address}#{fragment_of(task.state)}"), address, open_page)
    found = Done(task.run(person), person.clicks, person.seconds)
    if found.clicks > MOST_CLICKS:
        raise ValueError(f"{task.title}: {found.clicks} clicks; at most {MOST_CLICKS}")
    if found.seconds > MOST_S:
        raise ValueError(f"{task.title}: {found.seconds:.0f} s; at most {MOST_S:.0f}")
    return found, person.page
