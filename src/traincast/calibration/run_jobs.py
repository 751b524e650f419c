"""What a row of the common schema says of its job: its model, layout, network and framework.

What no column says stays open, and `traincast.job.resolve` decides it by framework.
"""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.calibration.tables import Row
from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.hardware.gpu import find_gpu
from traincast.job.frameworks import framework_names, framework_of_year
from traincast.job.parallel import MAX_WORLD_SIZE
from traincast.job.pipeline_layout import parse_layout
from traincast.job.recipes import BASES, recipe_run_by
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.model.counts import parameters
from traincast.model.load import builtin_table, family_table, find_model
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table
from traincast.shipped import constant, shipped_toml
from traincast.units import GIGA

ASSUMED_FRAMEWORK = "unknown-framework"
"""Code of the note that a row's column names no framework that is known."""

_READ_APART = (
    *("model", "gpus", "seq_length", "framework", "task", "year", "stage_layers", "zero", "shard"),
    *("sharp", "gpus_used_per_node", "mtp_layers"),
)
"""Keys of a job that no column of their name says: others do, in other words or under a longer name."""
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_LAG_YEARS = 2
"""Years from a generation of GPUs to the software of runs on it. Median of the published runs whose framework is known:
3 on Ampere (263 runs), 2 on Hopper (495), 1 on Blackwell (252)."""
_USUAL_YEAR = 2025
"""Latest year of software that is taken where a run does not say it: published runs are a year behind what a job of
today runs, and so is what their tables call HEAD."""
_COLUMNS = {
    **{name: ("", name) for name in ("layers", "hidden", "ffn_hidden", "vocab")},
    **{name: ("attention", name) for name in ("heads", "kv_heads", "head_dim")},
    **{"experts": ("experts", "experts"), "topk": ("experts", "topk"), "moe_ffn": ("experts", "ffn_hidden")},
}
"""Column to where its value belongs in the model's table: section and name."""
SHAPE_COLUMNS = tuple(_COLUMNS)
"""Columns that say the shape of a model."""


class _Filling(Struct):
    """Fields of the request so far, and what was assumed."""

    row: Row
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Note(code, text, self.row.place))

    def ranks(self, *names: str) -> int:
        """Return how many ranks the degrees of these names make."""
        return prod(self.values.get(name) or 1 for name in names)


def request_of(row: Row, model: Model) -> tuple[JobRequest, tuple[Note, ...]]:
    """Return the job of a row, and what was assumed of it.

    Raises
    ------
    ConfigError
        If the layout is open.
    FormatError
        If a cell has no value that its column can have.
    """
    filling, found = _Filling(row), framework_of(row)
    if found.assumed:
        filling.note(ASSUMED_FRAMEWORK, found.assumed)
    filling.values |= {"framework": found.name, "task": row.cells.get("x_task", "pretrain")}
    filling.values |= {name: read(row, name) for name, read in constant(_job_columns).items() if name in row.cells}
    filling.values["global_batch"] = row.count("global_batch")
    annotated = found.name in _table().annotations["frameworks"]
    _layout(filling, model, annotated=annotated)
    if annotated and "micro_batch" not in filling.values:
        # Their steps have one microbatch.
        replicas = row.count("num_gpus") // filling.ranks("tp", "pp", "cp")
        if replicas and filling.values["global_batch"] % replicas == 0:
            filling.values["micro_batch"] = micro_batch = filling.values["global_batch"] // replicas
            filling.note("one-microbatch", f"micro batch is empty: {micro_batch}, one microbatch a step")
    if "micro_batch" not in filling.values:
        filling.note("open-micro-batch", "micro batch is empty: 1 sequence")
    _sharding(filling)
    _stages(filling, model)
    if model.experts is not None and "capacity_factor" in row.cells:
        model = replace(model, experts=replace(model.experts, capacity_factor=row.number("capacity_factor")))
    filling.values |= {"gpus": row.count("num_gpus"), "seq_length": row.count("seq_len")}
    _recipe(filling, model)
    return JobRequest(model=model, **filling.values), tuple(filling.notes)


def _job_columns() -> Mapping[str, Callable[[Row, str], Any]]:
    """Return how the columns are read that have the names of a job's keys, by the types of these."""
    read: dict[Any, Callable[[Row, str], Any]] = {bool: _switch, int: Row.count, float: Row.number, str: _text}
    found = {}
    for name, each in JOB_FIELDS.items():
        kinds = get_args(each.type) or (each.type,)
        of_names = any(get_origin(kind) is tuple for kind in kinds)
        if name not in _READ_APART:
            found[name] = _names if of_names else next(read[kind] for kind in kinds if kind in read)
    return found


def _switch(row: Row, name: str) -> bool:
    text = row.cells[name].lower()
    if text not in (*_ON, *_OFF):
        raise row.wrong(name, "it must be true or false")
    return text in _ON


def _text(row: Row, name: str) -> str:
    return row.cells[name]


def _names(row: Row, name: str) -> tuple[str, ...]:
    """Return names that stand next to each other: ``attn+moe_router``, ``attn, moe_router``."""
    return tuple(re.findall(r"[^\s,;+]+", row.cells[name]))


def _recipe(filling: _Filling, model: Model) -> None:
    """Fill in what the recipe sets that a row names, where no table has said its settings already."""
    cells = filling.row.cells
    if "recipe" not in cells or cells.get("basis") in BASES:
        return
    recipe = recipe_run_by(cells["recipe"], cells.get("framework", ""))
    if recipe is None:
        filling.note("recipe-unknown", f"recipe {cells['recipe']} is not known: what it sets is the framework's")
        return
    filling.values |= recipe.beyond(filling.values, model.name)
    filling.note("recipe", f"settings that no column says are those of recipe {recipe.full_name} of {recipe.release}")


def _layout(filling: _Filling, model: Model, *, annotated: bool) -> None:
    """Fill in degrees of parallelism that are printed otherwise, or not at all.

    `annotated` frameworks lay out by sharding annotations, whose axes are not degrees of parallelism.
    """
    values = filling.values
    if not {"tp", "pp"} & set(values):
        if not annotated:
            raise ConfigError("the columns tp and pp are empty")
        values |= {"tp": 1, "pp": 1}
        filling.note("annotation-axes", "TP and PP are not printed: 1, all ranks share the parameters (FSDP)")
    if values.get("pp") == 1 and values.get("vpp", 1) > 1:
        filling.note("vpp-without-pipeline", f"VPP {values['vpp']} with PP 1 is printed: taken as 1")
        values["vpp"] = 1
    if model.experts is None:
        values.pop("etp", None)
    elif "ep" not in values:
        filling.note("ep-missing", "EP is empty on a run with experts: taken as 1")


def _stages(filling: _Filling, model: Model) -> None:
    """Read where the layers go from a layout that is written out, or from what counts as a layer.

    Either is left out, with a note, where it is not of this model and these degrees, as that of a near recipe may be.
    """
    values, text = filling.values, filling.row.cells.get("pp_layout")
    pp, vpp = values.get("pp", 1), values.get("vpp")
    if text is not None and pp > 1:
        layout = parse_layout(text)
        count = len(layout.stages)
        if sum(layout.layers_Q) == model.layers and count % pp == 0 and vpp in (None, count // pp):
            whole = layout.mtp_layers == model.mtp_layers
            values |= {"pipeline_layout": str(layout)} if whole else {"stage_layers": layout.layers_Q}
        else:
            filling.note("layout-unused", f"pp_layout {text} is not one of {model.layers} layers over pp {pp}")
    counted_too = [name for name in ("embedding_as_layer", "head_as_layer") if values.get(name)]
    if {"stage_layers", "pipeline_layout"} & set(values) or (model.layers + len(counted_too)) % (pp * (vpp or 1)):
        for name in counted_too:
            del values[name]
            filling.note(f"{name.replace('_', '-')}-unused", f"{name} has no effect: the layers do not divide so")


def _shard(row: Row, digits: str | None) -> int | None:
    if digits is None:
        return None
    if len(digits) > len(str(MAX_WORLD_SIZE)):
        message = f"column zero_or_fsdp names a group of {len(digits)} digits; a job has at most {MAX_WORLD_SIZE} ranks"
        raise FormatError(message, row.path, row.line)
    return int(digits)


def _sharding(filling: _Filling) -> None:
    """Read ``zero1(8)``, ``fsdp-128``, ``fsdp2-4(x cp)``, ``hsdp`` as stage and group."""
    row = filling.row
    text = row.cells.get("zero_or_fsdp", "")
    replicas = row.count("num_gpus") // filling.ranks("tp", "pp")
    if text.startswith("zero"):
        found = re.match(r"zero([0-3])(?!\d)(?:\((\d+)\))?", text)
        if found is None:
            raise row.wrong("zero_or_fsdp", "ZeRO has the stages 0 to 3, as in zero1 or zero1(8)")
        filling.values["zero"] = int(found[1])
        shard = _shard(row, found[2])
    elif text.startswith("fsdp-shard_grad_op"):
        filling.values["zero"], shard = 2, None
    elif text.startswith("fsdp"):
        filling.values["zero"] = 3
        group = re.match(r"fsdp2?-(?:shard)?(\d+)", text)
        shard = _shard(row, group[1] if group else None)
        if shard and "(x cp)" in text:
            shard *= filling.values.get("cp", 1)
    elif text == "hsdp":
        filling.values["zero"] = 3
        shard = row.count("gpus_per_node") if "gpus_per_node" in row.cells else 8
        filling.note("hsdp-node", f"HSDP without its group: {shard}, the GPUs of a node")
    else:
        return
    if shard is not None and filling.values["zero"] and replicas % shard == 0:
        filling.values["shard"] = shard


def nic_bytes_per_s(row: Row) -> float | None:
    """Return the rate of the network cards per GPU, in bytes/s and direction; None where the row does not say it."""
    return row.number("nic_gbit_per_gpu") * GIGA / 8 if "nic_gbit_per_gpu" in row.cells else None


class _Told(NamedTuple):
    """The framework of a published run, and why it is taken where no column names it."""

    name: str
    assumed: str = ""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A framework by the text of its column; `data/training/written.toml` explains the fields."""

    pattern: str
    framework: str = ""
    before_2025: str = ""
    by_year: bool = False
    gpu: str = ""
    task: str = ""

    def fits(self, row: Row) -> bool:
        texts = {"framework": self.pattern, "gpu": self.gpu, "x_task": self.task}
        return all(re.search(text, row.cells.get(name, ""), re.IGNORECASE) for name, text in texts.items())


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    framework: tuple[_Entry, ...]
    vendors: Mapping[str, str]
    generations: Mapping[str, int]
    releases: Mapping[str, int]
    annotations: Mapping[str, tuple[str, ...]]
    not_described: Mapping[str, str]


def _table() -> _Table:
    return constant(shipped_toml, "training/written.toml", _Table)


def framework_of(row: Row) -> _Told:
    """Return the framework of a row; where its column names none that is known, that of its GPU."""
    written = row.cells.get("framework", "")
    if written in framework_names():
        return _Told(written)
    known = next((each for each in _table().framework if each.fits(row)), None)
    if known is None:
        shown = f"framework {written!r} is not known" if written else "the framework is not given"
        gpu = find_gpu(row.cells.get("gpu", ""))
        name = None if gpu is None else _table().vendors.get(gpu.vendor)
        if gpu is not None and name is not None:
            return _Told(name, f"{shown}: {name}, as others on GPUs of {gpu.vendor}")
        return _of_year(row, shown)
    if known.by_year:
        return _of_year(row)
    year = year_of(row)
    return _Told(known.before_2025 or known.framework if year is not None and year < 2025 else known.framework)


def _of_year(row: Row, shown: str = "") -> _Told:
    """Return Megatron's framework of the software's year, which the GPU's generation tells where nothing else does."""
    year = _megatron_year(row)
    if year is not None:
        name = framework_of_year(year)
        return _Told(name, f"{shown}: {name}, by its year {year}" if shown else "")
    shown = shown or f"nothing says of which year {row.cells['framework']!r} is"
    gpu = find_gpu(row.cells.get("gpu", ""))
    came_out = None if gpu is None else _table().generations.get(gpu.architecture)
    if gpu is None or came_out is None:
        name = framework_of_year(_USUAL_YEAR)
        return _Told(name, f"{shown}, nor what its GPU usually runs: {name}")
    year = min(came_out + _LAG_YEARS, _USUAL_YEAR)
    name = framework_of_year(year)
    return _Told(name, f"{shown}: {name}, the software of {year} that most runs on {gpu.architecture} GPUs use")


def year_of(row: Row) -> int | None:
    """Return the year of a row's software as far as its release or name says it, or a column of its own."""
    framework = row.cells.get("framework", "")
    if (release := re.search(r"\b2(\d)\.\d\d(?:\.\d+)?\b", framework)) is not None:
        return 2020 + int(release[1])
    written = re.search(r"(?<!\d)20[12]\d(?!\d)", framework)
    if written:
        return int(written[0])
    return row.count("software_year") if "software_year" in row.cells else None


def _megatron_year(row: Row) -> int | None:
    year, framework = year_of(row), row.cells.get("framework", "").lower()
    if year is not None:
        return year
    if "megatron" not in framework:
        return None
    return next((year for pattern, year in _table().releases.items() if re.search(pattern, framework)), None)


def model_from_columns(row: Mapping[str, str]) -> Model:
    """Return the model of a row's columns, any of which may be missing, under the row's own name.

    What the columns leave open is taken from the built-in model of the row's name, or from the family that
    the name begins with; what they say wins, so that a model cut down to fewer layers is described as it ran.
    `_as_trained` has what else follows from the row.

    Raises
    ------
    ConfigError
        If the model is of a kind that is not described, the shape is incomplete (the message names the
        columns), or a column is not a number.
    """
    # A release that some tables print with the name is not one of the model's.
    name = re.sub(r"(?<!\s)\s*+\(\d\d\.\d\d[.\d]*\)$", "", (row.get("model") or "").strip())
    for pattern, kind in _table().not_described.items():
        if re.search(pattern, name, re.IGNORECASE):
            raise ConfigError(f"{name} is a {kind}, which is not described", "model")
    builtin = builtin_table(name) if find_model(name) is not None else None
    known = builtin if builtin is not None else family_table(name)
    given = _given(row)
    table, attention = merged(known or {}, given), given.get("attention", {})
    if "heads" in attention and "head_dim" not in attention:
        # A family's head size is none of other heads'.
        table["attention"] = {key: value for key, value in table["attention"].items() if key != "head_dim"}
    needed = {"layers", "hidden", "ffn_hidden", "vocab", "heads"}
    # A missing kv_heads or head_dim follows from heads.
    needed |= {"experts", "topk", "moe_ffn"} if "experts" in table else set()
    lacking = [
        column
        for column, (section, key) in _COLUMNS.items()
        if column in needed and (table.get(section, {}) if section else table).get(key) is None
    ]
    shown = row.get("id") or name
    if lacking or known is None:
        what = f"the columns {', '.join(lacking)} are empty" if lacking else "nothing tells its kind of layers"
        whose = "no built-in model has that name" + ("" if known is not None else ", and no family either")
        raise ConfigError(
            f"the shape of {name or 'a model without a name'} is incomplete: {what}, and {whose}", "model"
        )
    table |= {"name": name, "source": f"columns of {shown}; {table.get('source', name)}"}
    model = model_from_table(_as_trained(table, builtin, row), f"the columns of {shown}")
    return model if builtin is not None else _head_by_count(model, row)


def _given(row: Mapping[str, str]) -> dict[str, Any]:
    """Return what the columns say, nested as the model's table is."""
    given: dict[str, Any] = {}
    for column, (section, name) in _COLUMNS.items():
        value = _whole(row, column)
        if value is not None:
            (given.setdefault(section, {}) if section else given)[name] = value
    return given


def _as_trained(table: dict[str, Any], builtin: Mapping[str, Any] | None, row: Mapping[str, str]) -> dict[str, Any]:
    """Return the table with what a run does in addition to its shape.

    * Learned positions: one per token of a sequence.
    * A model cut to fewer layers keeps one dense layer before those with experts, and none that predicts further
      tokens: the memory that SimuMax prints for DeepSeek-V3 with 4 layers (104 GiB with EP 8, 114 GiB with EP 4
      and PP 2) fits no other number.
    * It trains as many MTP layers as a column says.
    * Its kernels attend to what comes later, too, where a column says so.
    """
    seq_length, mtp_layers = _whole(row, "seq_len"), _whole(row, "mtp_layers")
    result = dict(table)
    if row.get("attention_causal") == "false":
        result["attention"] = {**result.get("attention", {}), "causal": False}
    if result.get("learned_positions") and seq_length:
        result["learned_positions"] = seq_length
    cut = builtin is not None and result["layers"] < builtin["layers"]
    if mtp_layers:
        result["mtp_layers"] = mtp_layers
    elif cut or mtp_layers == 0:
        result.pop("mtp_layers", None)
    experts = result.get("experts")
    if cut and experts and experts.get("first_dense_layers"):
        experts = result["experts"] = {**experts, "first_dense_layers": 1}
    if experts and builtin is not None and experts["experts"] != builtin.get("experts", {}).get("experts"):
        # The groups of a routing are those of its number of experts.
        result["experts"] = {key: value for key, value in experts.items() if key not in ("groups", "group_topk")}
    return result


def _head_by_count(model: Model, row: Mapping[str, str]) -> Model:
    """Return the model with or without a head of its own, whichever has the parameters that are printed.

    Megatron ties a GPT's head by default, and its later scaling tables do not: only their printed sizes say so. As for
    others, who leave a small model's head tied.
    """
    try:
        printed = float(row.get("params_b") or "nan") * GIGA
    except ValueError:
        raise ConfigError(f"is {row['params_b']!r}; it must be a number", "params_b") from None
    if not printed > 0:
        return model
    other = replace(model, tied_embeddings=not model.tied_embeddings)
    closer = abs(parameters(other).total - printed) < abs(parameters(model).total - printed)
    return other if closer else model


def _whole(row: Mapping[str, str], column: str) -> int | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"is {text!r}; it must be a whole number", column) from None
