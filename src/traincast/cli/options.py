"""Types of options, and the options that several commands share.

What an option means is said where the field that it sets is; a value that is wrong there is wrong usage here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from traincast import api, report
from traincast.cli.completion import FURTHER_REPORTS, known, one_of
from traincast.cli.sections import OUTPUT, READING, SIMULATION, TRIED, WHOLE_RUN, in_section
from traincast.errors import ConfigError
from traincast.hardware.dtypes import DTYPE_BYTES
from traincast.job.failures import Failures, parse_failures
from traincast.job.flags import LAYOUT_FLAGS, flag_of
from traincast.job.options import (
    COMM_SOURCES,
    DEFAULT_SEEDS,
    NETWORKS,
    OVERLAP_CLASSES,
    SimaiOverlap,
    StageRoles,
    StepOptions,
    check_gpus_used,
    parse_overlap,
)
from traincast.job.training_run import RunTerms
from traincast.names import find_name, known_names
from traincast.schedules.schedule import SCHEDULES
from traincast.units import (
    RANGES,
    Range,
    checked_field,
    count_of,
    is_number,
    parse_rate,
    parse_size,
    parse_size_range,
    parse_token_count,
    parse_tokens,
    plain_number,
    quoted,
    range_of,
)

if TYPE_CHECKING:
    from traincast.job.record import RunRecord

    _ChoiceType = click.Choice[str]
    _NumberType = click.ParamType[float]
else:
    # Generic in the stubs of click 8.2 and later only.
    _ChoiceType, _NumberType = click.Choice, click.ParamType

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")
T = TypeVar("T")

_ALL_CLASSES = "all classes"


class Name(_ChoiceType):
    """One of several names, whatever its case and spelling; a wrong one is told those near it."""

    def __init__(self, known: Iterable[str]) -> None:
        super().__init__(list(known))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name that is meant, or complain as wrong usage."""
        names = list(self.choices)
        found = find_name(value, names)
        if found is None:
            self.fail(f"{value!r} is not one of them; {known_names(value, names)}", param, ctx)
        return found


class RecomputeName(Name):
    """What is recomputed: a name, or ``selective:MODULE,...``."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name that is meant, with its modules, or complain as wrong usage."""
        kind, colon, modules = value.partition(":")
        return super().convert(kind, param, ctx) + colon + modules


class InRange(_NumberType):
    """A number in a range, perhaps with ends of this option alone; outside it the usage is wrong."""

    def __init__(self, known: Range, least: float | None = None, most: float | None = None) -> None:
        self.name = "integer" if known.whole else "float"
        lowest, highest = known.lowest if least is None else least, known.highest if most is None else most
        self.known = Range(known.kind, lowest, highest, known.unit, known.whole, known.of)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or complain as wrong usage."""
        if isinstance(value, str):
            if not is_number(value.strip()):
                self.fail(f"{quoted(value)} is not a valid {self.name}; it must be {self.known}", param, ctx)
            value = plain_number(value)
        try:
            return self.known.checked(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def in_range(field: str, least: float | None = None, most: float | None = None) -> InRange:
    """Return the type of an option that sets a field of that name."""
    return InRange(range_of(field) or RANGES["figure"], least, most)


def usage(read: Callable[[str], T]) -> Callable[[str], T]:
    """Let a reader of a text complain as wrong usage."""

    @wraps(read)
    def convert(text: str) -> T:
        try:
            return read(text)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None

    return convert


@usage
def tokens(text: str) -> int:
    """Read ``8192``, ``8k`` or ``1M`` tokens."""
    return int(checked_field("seq_length", parse_tokens(text)))


@usage
def token_count(text: str) -> float:
    """Read ``300B`` or ``15T`` tokens, decimal."""
    return parse_token_count(text)


@usage
def size(text: str) -> int:
    """Read a number of bytes with a unit."""
    return parse_size(text)


@usage
def size_range(text: str) -> tuple[int, int]:
    """Read ``64MiB`` or ``1KiB..8GiB`` as its first and last size."""
    return parse_size_range(text)


@usage
def group_name(text: str) -> str:
    """Read the name of a group; an option in its place was meant as one."""
    if text.startswith("-"):
        raise ConfigError(f"{quoted(text)} is an option; say what is left out, such as ranks or gpu")
    return text


@usage
def expert_loads(text: str) -> tuple[float, ...] | Path:
    """Read ``1,0.8,1.2``, or a path of traces whose loads are meant."""
    try:
        return tuple(map(RANGES["load"].parsed, text.split(",")))
    except ConfigError as error:
        if has_magic(text) or Path(text).exists():
            return Path(text)
        what = "is not a list of numbers, such as 1.0,0.8,1.2, nor a path of rank traces"
        raise ConfigError(f"{quoted(text)} {what}: {error}") from None


@usage
def simai_overlap(text: str) -> SimaiOverlap:
    """Read ``tp=0.5,dp=1``."""
    return parse_overlap(text)


class _Rates(NamedTuple):
    """What one ``--busbw`` says."""

    rates: tuple[tuple[str, float], ...]
    """Group, or group and operation, with its bus bandwidth in bytes/s."""
    from_file: bool


@usage
def _rates(text: str) -> _Rates:
    """Read ``tp=300GB/s``, ``tp.all_reduce=300GB/s``, or a file of SimAI's that holds several."""
    if "=" not in text and Path(text).is_file():
        return _Rates(tuple(api.bus_bandwidths(text).items()), from_file=True)
    group, rate = _pair(text, "GROUP=RATE, nor a file of bus bandwidths")
    return _Rates(((group, parse_rate(rate)),), from_file=False)


def _by_group(given: Sequence[_Rates], name: str) -> dict[str, float]:
    """Return the bus bandwidth of each group; a typed one goes before a file's, for all operations of its group."""
    typed, filed = (
        _once_each([pair for each in given if each.from_file is from_file for pair in each.rates], name)
        for from_file in (False, True)
    )
    typed_names = {key.casefold() for key in typed}
    kept = {
        key: rate for key, rate in filed.items() if not typed_names & {key.casefold(), key.partition(".")[0].casefold()}
    }
    return {**kept, **typed}


@usage
def _rank_factor(text: str) -> tuple[int, float]:
    """Read ``7=1.3``."""
    try:
        rank, factor = _pair(text, "RANK=FACTOR")
        return int(RANGES["rank"].parsed(rank)), RANGES["factor"].parsed(factor)
    except ConfigError as error:
        raise ConfigError(f"{quoted(text)} is not a rank and a factor, such as 7=1.3: {error}") from None


@usage
def _slowdowns(text: str) -> list[tuple[str, float]]:
    """Read ``memory=0.1``, several of them between commas, or ``0.1`` for all classes."""
    found = []
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            found.append((name.strip() or _ALL_CLASSES, RANGES["added share"].parsed(number)))
        except ConfigError as error:
            what = "is not a class and a slowdown, such as memory=0.1"
            raise ConfigError(f"{quoted(part)} {what}: {error}") from None
    return found


def _by_class(given: Sequence[Sequence[tuple[str, float]]], name: str) -> dict[str, float]:
    """Return the slowdown of each class; one that is named goes before one for all."""
    by_class = _once_each([pair for pairs in given for pair in pairs], name)
    of_all = {} if _ALL_CLASSES not in by_class else dict.fromkeys(OVERLAP_CLASSES, by_class.pop(_ALL_CLASSES))
    return {**of_all, **by_class}


@usage
def failures(text: str) -> Failures:
    """Read ``mtbf=50000h,checkpoint=30s``."""
    return parse_failures(text)


@usage
def _gpus_used(text: str) -> str | int:
    """Read ``64``, ``all`` or ``auto``."""
    value = count_of(text) or text
    try:
        check_gpus_used(value)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("gpus_used_per_node: ")) from None
    return value


def _once_each(pairs: Sequence[tuple[K, float]], name: str) -> dict[K, float]:
    """Return pairs by their key, or complain as wrong usage about a key that is given twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise click.UsageError(f"{name} is given twice for {twice}; give it once")
    return values


def _pair(text: str, form: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals:
        raise ConfigError(f"{quoted(text)} is not of the form {form}")
    return left.strip(), right.strip()


def _many(
    field: str, read: Callable[[str], Any], gather: Callable[..., Any], metavar: str, text: str
) -> Callable[[F], F]:
    """Return an option that may be given several times, and what gathers its values into one field."""

    def gathered(_: click.Context, __: click.Parameter, values: Sequence[Any]) -> object:
        return gather(values, flag_of(field))

    return click.option(flag_of(field), field, multiple=True, type=read, callback=gathered, metavar=metavar, help=text)


_LAYOUT = next(flag.section for flag in LAYOUT_FLAGS if flag.name == "tp")
_STEP_OPTIONS = (
    _many(
        "busbw_bytes_per_s",
        _rates,
        _by_group,
        "GROUP[.OP]=RATE|FILE",
        "Bus bandwidth of a group, such as tp=300GB/s, or of one operation, tp.all_reduce=300GB/s; or SimAI's "
        "busbw.yaml.",
    ),
    _many(
        "compute_slowdown",
        _rank_factor,
        _once_each,
        "RANK=FACTOR",
        "Make one rank's compute slower, such as 7=1.3.",
    ),
    click.option(
        "--network",
        type=Name(NETWORKS),
        default=NETWORKS[0],
        show_default=True,
        help="When the flows on shared links are solved: where groups can contend, never, or always.",
    ),
    click.option(
        "--network-seeds",
        type=in_range("network_seeds"),
        default=1,
        metavar="N",
        help="Hash seeds of the fabric to run; prints min, median and max of the step.",
    ),
    _many(
        "overlap_slowdown",
        _slowdowns,
        _by_class,
        "[CLASS=]X[,...]",
        "What full overlap adds to the time of a class, such as memory=0.1, or of all: "
        f"{', '.join(OVERLAP_CLASSES)}; 0 for none.",
    ),
    click.option(
        "--gpus-used-per-node",
        type=_gpus_used,
        metavar="N|all|auto",
        help="GPUs of each node that ranks are placed on (auto: what keeps tp, cp and ep groups in a node).",
    ),
    click.option(
        "--constants",
        metavar="FILE.csv",
        help="Constants of operators that go before the shipped ones, of traincast calibrate --gpu.",
    ),
    click.option("--unfold", is_flag=True, help="Simulate every rank, even where ranks are alike."),
)
GOODPUT = click.option(
    flag_of("failures"),
    "failures",
    type=failures,
    is_flag=False,
    flag_value="default",
    metavar="[NAME=TIME,...]",
    help="Useful share of a long run with failures: mtbf (of a GPU), detection, restart, checkpoint, interval, "
    "such as mtbf=50000h,checkpoint=30s; without values published ones.",
)
_TRY_OPTIONS = (
    click.option(
        "--what-if",
        "what_if",
        multiple=True,
        metavar="CHANGE",
        help="Try a change, such as tp_comm*0.5, rank7.compute=peers, nic_bandwidth=800Gb/s, "
        "overlap_grad_reduce=true; several are tried each alone and all together.",
    ),
    click.option(
        "--suggest/--no-suggest",
        default=True,
        show_default=True,
        help="Look for the changes that would help most, which simulates the step a few times more.",
    ),
    click.option(
        "--jitter",
        type=in_range("jitter"),
        default=0.0,
        metavar="X",
        help="Let computations vary, 0.05 for a standard deviation of 5 %; prints the spread of the step.",
    ),
    click.option(
        "--seeds", type=in_range("seeds"), default=DEFAULT_SEEDS, show_default=True, help="Simulations with --jitter."
    ),
    GOODPUT,
)
"""What is tried in addition to a step."""


class Applied(NamedTuple):
    """Advice that a command writes into a job file."""

    numbers: bool
    """Whether also what changes the numbers that a model learns from."""
    path: Path | None
    """The file; None: `ADVISED` in the folder of ``--out``."""

    def check(self, out: Path | None) -> None:
        """Refuse to write nowhere."""
        if self.path is None and out is None:
            raise click.UsageError("--apply needs --out DIR, or a file: --apply advice=job.toml")

    def written(self, out: Path | None, text: str) -> tuple[Path, list[tuple[str, Iterable[bytes]]]]:
        """Return the folder and the file of a text there."""
        path = Path(out or ".", ADVISED) if self.path is None else self.path
        return path.parent, [(path.name, [text.encode()])]


@usage
def applied(text: str) -> Applied:
    """Return what ``--apply`` says: which advice, and perhaps the file to write."""
    kind, _, path = text.partition("=")
    found = find_name(kind, _ADVICE)
    if found is None:
        raise ConfigError(f"is {quoted(kind)}; {known_names(kind, _ADVICE)}", "apply")
    return Applied(_ADVICE[found], Path(path) if path else None)


ADVISED = "advised.job.toml"
_ADVICE = {"advice": False, "all-advice": True}
apply_option = click.option(
    "--apply",
    "applied",
    type=applied,
    metavar="advice[=FILE]",
    help=f"Write the job with what advice changes ({ADVISED} in --out, or FILE); all-advice: also what changes the "
    "numbers that the model learns from.",
)
PRICE = click.option("--gpu-hour-price", type=in_range("gpu_hour_price"), metavar="X", help="What a GPU-hour costs.")
RUN_OPTIONS = (
    click.option(
        "--tokens",
        type=token_count,
        metavar="N",
        help="Tokens of the whole run, such as 15T (decimal): tells its days, GPU-hours and energy.",
    ),
    PRICE,
    click.option("--currency", metavar="NAME", help="Currency of that price, such as EUR."),
    click.option(
        flag_of("gpu_power_w"),
        "gpu_power_w",
        type=in_range("gpu_power_w"),
        metavar="W",
        help="Watts that a GPU draws with its share of the node (default: its design power).",
    ),
    click.option("--pue", type=in_range("pue"), metavar="X", help="Energy of the site over that of the nodes."),
    click.option(
        "--grid-intensity",
        type=in_range("grid_intensity"),
        metavar="G",
        help="Grams of CO2 equivalent that the grid emits for a kWh: tells the emissions.",
    ),
)
"""What is asked of a whole run (`traincast.job.training_run.RunTerms`)."""
_READ_OPTIONS = (
    click.option(
        "--stage-roles",
        type=Name(role.value for role in StageRoles),
        default=StageRoles.AUTO.value,
        show_default=True,
        help="Embedding and final rows on the first and last virtual stage, or on every stage.",
    ),
    click.option(
        "--overlap-grad-reduce", is_flag=True, help="Overlap the gradient reduction with the last backward pass."
    ),
    click.option(
        flag_of("pp_message_bytes"),
        "pp_message_bytes",
        type=size,
        metavar="SIZE",
        help="Size of one pipeline send/recv.",
    ),
    click.option(
        "--comm",
        type=Name(COMM_SOURCES),
        help="Times of a trace's communication: as measured, or from the model (default: by kind of trace).",
    ),
    click.option(
        "--step", type=in_range("step", 0), metavar="N", help="Step to take of a profiler trace: its ProfilerStep#N."
    ),
    click.option(
        "--expert-imbalance",
        type=in_range("expert_imbalance", 1),
        metavar="X",
        help="Tokens of the busiest expert rank over the mean (default 1).",
    ),
    click.option(
        "--expert-loads",
        type=expert_loads,
        metavar="X,X,...|TRACES",
        help="Relative tokens of each expert rank of an ep group, such as 1.0,0.8,1.2; or traces that show them.",
    ),
    click.option(
        "--layer-block", metavar="FIRST:LAST", help="Names of the first and last row of a layer, for --layers."
    ),
    click.option("--dtype", type=Name(DTYPE_BYTES), help="Type of the elements that sizes are counted in."),
    click.option("--forward-only", is_flag=True, help="Leave out the backward pass and the gradient reductions."),
)
_OUTPUT_OPTIONS = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Write result.json, report.html, ops.csv, trace.json.gz there.",
    ),
    click.option(
        "--report",
        "further",
        multiple=True,
        metavar="NAME",
        shell_complete=one_of(*FURTHER_REPORTS),
        help="Write a further file into --out: picture (step.svg), picture-dark (step-dark.svg), endtoend "
        "(EndToEnd.csv in the layout of SimAI); repeat.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else."),
    click.option(
        "--analysis",
        "analysed",
        is_flag=True,
        help="Print the critical path, who waits for whom, communication with skew, and the roofline too.",
    ),
    click.option("--verbose", is_flag=True, help="Print all assumptions, in full, and how long it took."),
    click.option("--quiet", is_flag=True, help="Print nothing but errors."),
)


def check_reports(out: Path | None, further: Sequence[str]) -> None:
    """Refuse further reports that are not known or that there is nowhere to write to, as wrong usage."""
    if not further:
        return
    if out is None:
        raise click.UsageError("--report needs --out DIR, where the file is written")
    with wrong_usage():
        for name in further:
            report.REPORTS.get(name)


def with_options(options: Iterable[Callable[[F], F]], function: F) -> F:
    """Add options to a command, in their order."""
    for option in reversed(tuple(options)):
        function = option(function)
    return function


def step_options(function: F) -> F:
    """Add an option for every field of `StepOptions` that says how a step is simulated."""
    return with_options(in_section(SIMULATION, _STEP_OPTIONS), function)


def try_options(function: F) -> F:
    """Add ``--what-if``, ``--jitter``, ``--seeds`` and ``--goodput``: `StepOptions` besides those of a step."""
    return with_options(in_section(TRIED, _TRY_OPTIONS), function)


def run_options(function: F) -> F:
    """Add ``--tokens`` and all that is told of a whole run."""
    return with_options(in_section(WHOLE_RUN, RUN_OPTIONS), function)


def whole_run_options(function: F) -> F:
    """Add ``--tokens``, all that is told of a whole run, and ``--goodput``, for commands without it otherwise."""
    return with_options(in_section(WHOLE_RUN, (*RUN_OPTIONS, GOODPUT)), function)


def run_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `RunTerms` among the values of a command that were given."""
    return {each: values[each] for each in RunTerms.__struct_fields__ if values.get(each) is not None}


def output_options(function: F) -> F:
    """Add ``--out``, ``--json`` and ``--quiet``."""
    return with_options(in_section(OUTPUT, _OUTPUT_OPTIONS), function)


def layout_options(function: F) -> F:
    """Add a flag for every layout degree, under its own name and Megatron-LM's."""
    flags = [
        each
        for flag in LAYOUT_FLAGS
        for each in in_section(
            flag.section,
            [click.option(*flag.flags, flag.name, type=in_range(flag.name, 1), metavar="N", help=flag.help)],
        )
    ]
    return with_options(flags, function)


def read_options(function: F) -> F:
    """Add every option that says how the files of a run are read: their degrees, schedule and what they leave out."""
    said = (*in_section(_LAYOUT, [schedule_option()]), *in_section(READING, _READ_OPTIONS))
    return layout_options(with_options(said, function))


def schedule_option(kind: Name | None = None) -> Callable[[F], F]:
    """Return the option ``--schedule``, which lists every schedule, those of plug-ins too."""
    each, names = ", ".join(SCHEDULES.names()), known("schedule", files=False)
    return click.option(
        "--schedule", type=kind, metavar="NAME", shell_complete=names, help=f"Pipeline schedule: {each}."
    )


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Turn what is wrong with the options of a command into wrong usage."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def step_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `StepOptions` among the values of a command."""
    return {each: values[each] for each in StepOptions.__struct_fields__ if each in values}


def on_command_line(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that stand on the command line, which win over those of a recorded run."""
    source = click.get_current_context().get_parameter_source
    return {name: value for name, value in values.items() if source(name) is ParameterSource.COMMANDLINE}


def recorded_run(words: Sequence[str | Path]) -> "RunRecord | None":
    """Return what a result was made from, where it is the only word; None where the words are something else.

    Raises
    ------
    TraincastError
        If it is a result that does not hold that, or is damaged.
    """
    path = Path(words[0]) if len(words) == 1 else Path()
    # Asked of the name first, so that a pipe or device is not opened here.
    if path.suffix != ".json" and not (path / "result.json").is_file():
        return None
    return api.load_record(path) if api.is_result(path) else None
