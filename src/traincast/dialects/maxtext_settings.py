"""MaxText's configuration as a job: ``--like maxtext -- python3 -m MaxText.train base.yml model_name=llama3-8b ...``.

A file is read over MaxText's own ``base.yml``, whose values stand where nothing is said, and ``name=value`` over both.
Its axes of parallelism are those inside a slice (ici) times those between slices (dcn); ``-1`` is what is left. Source:
AI-Hypercomputer/maxtext, src/maxtext/configs/base.yml and types.py (2026-08).
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.dialects.flags import NO_EFFECT, READ, SMALL_EFFECT, FlagTable, Pasted, flag_table
from traincast.dialects.launch import launch_fields, launch_notes, read_launch
from traincast.dialects.settings import (
    Values,
    input_files,
    judged,
    model_of,
    settings_of_file,
    settings_of_words,
    split_files,
    words_of_launch,
)
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.draft import Draft
from traincast.model.load import model_over_base
from traincast.model.model import Model
from traincast.units import quoted

_SHOWN = "MaxText settings"
_FRAMEWORK = "maxtext-2024"
_BASE = "base.yml"
_MOST_BASES = 8
_AXES = {
    "data": "data",
    "fsdp": "shard",
    "fsdp_transpose": "shard",
    "expert": "ep",
    "context": "cp",
    "context_usp_ulysses": "cp",
    "sequence": "cp",
    "tensor": "tp",
    "tensor_transpose": "tp",
    "tensor_sequence": "tp",
    "pipeline": "pp",
}
"""Axis to what it splits: weights lie over fsdp, expert and context axes (the rules of ``embed`` in base.yml)."""
_KEPT = ("device", "offload")
"""Where a tensor may be said to be that is not recomputed."""
_OPEN = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
"""Axes that are what is left unless they are set."""


def draft_of_maxtext(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a launch line of MaxText, or its configuration file; see `traincast.dialects.draft_like`.

    Raises
    ------
    ConfigError
        If a setting has a wrong value.
    FormatError
        If a file cannot be read.
    InfeasibleError
        If the axes or the batch do not divide.
    """
    table, launch = flag_table("maxtext"), read_launch(words, _SHOWN)
    files, rest = split_files(words_of_launch(launch), (".yml", ".yaml"))
    said, inputs, notes = _of_files(files, table)
    over = settings_of_words(rest, _SHOWN, table)
    said = {name: values for name, values in {**said, **over}.items() if values not in (("",), ("None",))}
    settings = Pasted(said, _SHOWN, "")
    verdict = judged(Pasted(_not_default(said, table), _SHOWN, ""), table, strict=strict)
    mesh = _Mesh.from_settings(settings)
    fields = {"framework": _FRAMEWORK, **settings.fields(table), **launch_fields(launch)}
    fields |= _computing(settings, table)
    fields |= {name: mesh.degree(name) for name in ("tp", "pp", "cp", "ep")}
    if fields["tp"] > 1:
        # Source: base.yml: what is between layers is split along the sequence (tensor_sequence) or the hidden size
        # (tensor), which moves and keeps as many bytes.
        fields["sequence_parallel"] = True
    if launch.gpus is not None or mesh.gpus() is not None:
        fields["gpus"] = launch.gpus or mesh.gpus()
    model, why = _model(settings, table)
    says = launch.says if launch.gpus is not None else "the product of all ici and dcn axes"
    assumed = Note("assumed-framework", f"framework is not given: {_FRAMEWORK}, for MaxText; give --framework")
    return Draft(
        model=model,
        fields={name: value for name, value in fields.items() if name != "ep" or value > 1},
        notes=(*verdict.notes, *launch_notes(launch), *notes, assumed),
        settings=verdict.settings,
        warnings=(*verdict.warnings, *_other_sizes(settings, table)),
        finish=lambda given, model: _finish(settings, mesh, given, model),
        launched=launch.gpus,
        whys={"gpus": says, "model": why},
        inputs=inputs,
    )


def _of_files(files: Sequence[str], table: FlagTable) -> tuple[Values, tuple[Any, ...], list[Note]]:
    """Return the settings of files over those that they build on, the files that were read, and notes."""
    found: dict[str, tuple[str, ...]] = {}
    read: list[str] = []
    notes = []
    for file in files:
        chain: list[Values] = []
        path = Path(file)
        while True:
            if path.name == _BASE and not path.is_file():
                notes.append(Note("maxtext-base", f"{path} is not here: MaxText's own values of 2026-08 stand for it"))
                break
            settings = settings_of_file(str(path))
            read.append(str(path))
            if path.name == _BASE:
                settings = _of_effect(settings, table, notes)
            chain.append(settings)
            base = " ".join(settings.get("base_config", ()))
            if not base:
                break
            if len(chain) > _MOST_BASES:
                raise ConfigError(f"files build on each other more than {_MOST_BASES} deep", "base_config")
            path = path.parent / base
        for settings in reversed(chain):
            found |= settings
    return found, input_files(read, "maxtext"), notes


def _of_effect(settings: Values, table: FlagTable, notes: list[Note]) -> Values:
    """Return the settings of MaxText's own file that may have an effect; a note counts the others, some hundreds."""
    known = {name: table.find(name.replace("_", "-")) for name in settings}
    found = {
        name: values
        for name, values in settings.items()
        if (flag := known[name]) is None or flag.effect not in (NO_EFFECT, SMALL_EFFECT)
    }
    text = f"{len(settings) - len(found)} settings of {_BASE} have no effect on the time of a step, or a small one"
    notes.append(Note("flags-without-effect", text))
    return found


def _not_default(said: Values, table: FlagTable) -> Values:
    """Return settings without those that say of the model what MaxText's base.yml does."""
    usual = table.further["defaults"]
    own = {name: values for name, values in said.items() if name in usual and _plain(values) == usual[name]}
    return {name: values for name, values in said.items() if name not in own}


def _plain(values: tuple[str, ...]) -> str:
    return " ".join(values).replace("_", "") if values != ("llama2",) else "llama2"


def _other_sizes(settings: Pasted, table: FlagTable) -> tuple[Note, ...]:
    """Warn of sizes given with a named model, which MaxText takes only with override_model_config."""
    read = [name for name in _not_default(settings.flags, table) if name in table.further["defaults"]]
    sizes = [name for name in read if (known := table.find(name.replace("_", "-"))) and known.effect == READ]
    if settings.words("model_name") in ("", "default") or not sizes:
        return ()
    text = (
        f"{', '.join(sizes)} are not read together with model_name {settings.words('model_name')}; it may matter much"
    )
    return (Note("flag-not-modelled", f"{text}: give --model, a config.json or TOML"),)


class _Mesh(Struct, frozen=True):
    """Degrees of each axis inside a slice and between slices; 0 is what is left."""

    inside: Mapping[str, int]
    between: Mapping[str, int]
    slices: int | None

    @classmethod
    def from_settings(cls, settings: Pasted) -> "_Mesh":
        """Read the axes.

        Raises
        ------
        ConfigError
            If several axes of one kind are what is left, or one that splits layers or sequences.
        """
        found = {}
        for where in ("ici", "dcn"):
            names = {axis: f"{where}_{axis}_parallelism" for axis in _AXES}
            sizes = {
                axis: settings.count(name, 1, -1) if name in settings else _OPEN.get(name, 1)
                for axis, name in names.items()
            }
            left = [axis for axis, size in sizes.items() if size < 0]
            for axis in left:
                if len(left) > 1 or _AXES[axis] not in ("data", "shard"):
                    others = ", ".join(names[each] for each in left if each != axis) or "the GPUs"
                    what = (
                        f"is -1 together with {others}; write its size, or 1: one of data and fsdp can be what is left"
                    )
                    raise settings.wrong(names[next((each for each in left if names[each] in settings), axis)], what)
            found[where] = {axis: max(0, size) for axis, size in sizes.items()}
        slices = [settings.count(name, 1, -1) for name in ("num_slices", "compile_topology_num_slices")]
        return cls(found["ici"], found["dcn"], next((each for each in slices if each > 0), None))

    def degree(self, what: str) -> int:
        """Return a degree of the job; an axis that is what is left counts as 1 until the GPUs are known."""
        return prod(max(1, self.inside[axis]) * max(1, self.between[axis]) for axis, of in _AXES.items() if of == what)

    def gpus(self) -> int | None:
        """Return the product of all axes; None where one inside a slice is what is left."""
        inside = prod(self.inside.values())
        return inside * self.slice_count() if inside else None

    def slice_count(self) -> int:
        """Return the slices: as many as are said, else what the axes between them say."""
        fixed = prod(max(1, size) for size in self.between.values())
        return fixed if self.slices is None else max(fixed, self.slices)

    def copies(self, gpus: int) -> int:
        """Return the ranks among which nothing is sharded: the axes ``data``, with what is left where they take it.

        Raises
        ------
        InfeasibleError
            If the axes do not divide the GPUs.
        """
        fixed, slices = prod(max(1, size) for size in self.inside.values()), self.slice_count()
        axis = next((axis for axis, size in self.inside.items() if size == 0), None)
        if gpus % (fixed * slices) or (axis is None and gpus != fixed * slices):
            raise InfeasibleError(
                f"the axes of MaxText make {fixed} GPUs of a slice x {slices} slices, but there are {gpus}; "
                f"give other axes, or -1 for what is left"
            )
        between = slices // prod(max(1, size) for size in self.between.values()) if not self.between["data"] else 1
        left = gpus // (fixed * slices) if axis == "data" else 1
        return self.degree("data") * between * left


def _computing(settings: Pasted, table: FlagTable) -> dict[str, Any]:
    """Return the types of GEMMs and what is recomputed."""
    found: dict[str, Any] = {}
    known = table.further
    if "quantization" in settings:
        found["precision"] = settings.choice("quantization", known["quantizations"])
    if "quantization" in settings and (recipe := known["recipes"].get(settings.text("quantization"))):
        found["fp8_recipe"] = recipe
    if "remat_policy" in settings:
        found |= _recomputed(settings, table)
    return found


def _recomputed(settings: Pasted, table: FlagTable) -> dict[str, Any]:
    """Return what a policy recomputes: layers whole but for what makes the tensors that it saves."""
    tensors, policy = settings.choice("remat_policy", table.further["remat"]).split(), settings.text("remat_policy")
    if policy == "none":
        return {"recompute": "none"}
    if policy == "custom":
        tensors = [name for name in table.further["saved"] if settings.words(name) in _KEPT]
    kept = dict.fromkeys(each for name in tensors for each in table.further["saved"][name].split())
    return {"recompute": "full"} | ({"recompute_keeps": tuple(kept)} if kept else {})


def _offloads(settings: Pasted, table: FlagTable) -> bool:
    """Say whether a policy keeps what layers save in the memory of the host."""
    policy = settings.text("remat_policy") if "remat_policy" in settings else ""
    tensors = ("decoder_layer_input", *table.further["saved"])
    return policy.endswith("_offloaded") or (
        policy == "custom" and any(settings.words(name) == "offload" for name in tensors)
    )


def _finish(settings: Pasted, mesh: _Mesh, given: Mapping[str, Any], model: Model | None) -> dict[str, Any]:
    """Return what follows from the GPUs: what is sharded over which of them, the batch and the stages."""
    gpus, pp = given["gpus"], given["pp"]
    dp = max(1, gpus // (given["tp"] * pp * given["cp"]))
    other = any(given.get(name, 1) != mesh.degree(name) for name in ("tp", "pp", "cp", "ep"))
    # Options that say other degrees than the axes leave what is sharded as it is in one slice.
    copies = mesh.degree("data") if other else mesh.copies(gpus)
    found: dict[str, Any] = {}
    shard = max(1, dp * given["cp"] // copies)
    if shard > 1:
        found |= {"zero": 3, "shard": shard}
    else:
        found["zero"] = 1 if settings.is_on("shard_optimizer_over_data") else 0
    each = settings.number("per_device_batch_size") if "per_device_batch_size" in settings else 12.0
    steps = settings.count("gradient_accumulation_steps", 1, 1)
    total = int(gpus * each)
    pieces = settings.count("num_pipeline_microbatches", 1, -1) if pp > 1 else 1
    if pieces < 0:
        pieces = pp * (1 + settings.is_on("pipeline_delay_activation_forwarding"))
    if total < 1 or total % (dp * pieces):
        raise InfeasibleError(
            f"per_device_batch_size {each:g} x {gpus} GPUs = {total} sequences do not divide over {dp} replicas"
            f"{f' x {pieces} microbatches' if pieces > 1 else ''}; give another batch or other axes"
        )
    found |= {"micro_batch": total // (dp * pieces), "global_batch": total * steps}
    if model is not None and _offloads(settings, flag_table("maxtext")):
        found["offload_activations"] = model.layers
    if pp > 1 and "vpp" not in given:
        repeats = settings.count("num_pipeline_repeats", 1, -1)
        if repeats < 0 and model is not None:
            repeats = model.layers // (pp * settings.count("num_layers_per_pipeline_stage", 1, 1))
        found["vpp"] = max(1, repeats)
        # Source: MaxText, layers/pipeline.py: all microbatches go forward through all repeats, then back.
        found["schedule"] = "looped_bfs" if found["vpp"] > 1 else "gpipe"
    return found


def _model(settings: Pasted, table: FlagTable) -> tuple[Model | str | None, str | None]:
    """Return the built-in model that is named, or the one that the settings describe; else why none."""
    name = settings.text("model_name") if "model_name" in settings else "default"
    if name != "default":
        return model_of(table.further["models"].get(name, name))
    said = {**table.further["defaults"], **{each: settings.words(each) for each in settings.flags}}
    if said["decoder_block"] not in ("llama2", "mistral") or said["num_experts"] != "1":
        return None, f"decoder_block {quoted(said['decoder_block'])} without a model_name is not described here"
    described = Pasted(
        {name: (str(text),) for name, text in said.items() if name in table.further["defaults"]}, _SHOWN, ""
    )
    widths, hidden, layers = _scales(described.count("global_parameter_scale", 1))
    attention = {
        "heads": widths * described.count("base_num_query_heads", 1),
        "kv_heads": widths * described.count("base_num_kv_heads", 1),
        "head_dim": described.count("head_dim", 1),
    }
    sizes = {
        "layers": layers * described.count("base_num_decoder_layers", 1),
        "hidden": hidden * described.count("base_emb_dim", 1),
        "ffn_hidden": widths * described.count("base_mlp_dim", 1),
        "vocab": described.count("vocab_size", 1),
        "mtp_layers": described.count("mtp_num_layers"),
    }
    tied = settings.is_on("logits_via_embedding")
    gated = len(settings.flags.get("mlp_activations", ("silu", "linear"))) > 1
    table_of_model = {**sizes, "attention": attention, "gated": gated, "tied_embeddings": tied, "name": "maxtext"}
    return model_over_base(table_of_model, _SHOWN), None


def _scales(scale: int) -> tuple[int, int, int]:
    """Return what a scale of all parameters makes of heads and MLP, of the hidden size, and of the layers.

    It is a power of two, which doubles them in turn. Source: MaxText, configs/types.py (get_individual_scales).
    """
    doublings = scale.bit_length() - 1
    if scale != 2**doublings:
        raise ConfigError(f"is {scale}; it must be a power of two", "global_parameter_scale")
    rounds, rest = divmod(doublings, 3)
    return 2 ** (rounds + (rest > 0)), 2 ** (rounds + (rest > 1)), 2**rounds
