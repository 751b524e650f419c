"""Write a job as an AICB/SimAI workload, with AICB's conventions and our compute times.

Source: aliyun/aicb, ``workload_generator/SimAI_training_workload_generator.py`` (``dump_file``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.formats.aicb.conventions import GENERATIONS, Conventions, Elements, Generation, is_transformer
from traincast.formats.aicb.fill import filled, implied_fields
from traincast.formats.aicb.from_workload import converted
from traincast.formats.aicb.rewrite import rewritten, said_vpp
from traincast.formats.aicb.rows import Line, RowWriter
from traincast.formats.aicb.times import ComputeTimes, EstimatedTimes, MeasuredTimes, parse_times, read_aiob
from traincast.formats.layout import NODE_RANKS
from traincast.formats.values import whole
from traincast.formats.writer import WRITERS, Run, Writer, WriterOption, Written
from traincast.job.job import Job
from traincast.lowering.plans import plan_of_job
from traincast.lowering.stage import stage_layers, stages_of
from traincast.model.structure import Blocks, last_blocks, layer_blocks
from traincast.units import GIGA, counted

_NEWEST = "pp_comm"
_MOST_32_BIT = 2**31 - 1
_LARGEST_GATHER = 16 << 30


def write(run: Run, options: Mapping[str, str]) -> Written:
    """Return the workload of a job, an AICB file with what was said otherwise, or of other files a rank's rows."""
    if run.job is None:
        is_own = [each.format for each in run.workload.inputs] == ["aicb"]
        _refuse_unused(options, "vpp" if is_own else "stage")
        return rewritten(run, str(options["vpp"])) if is_own else converted(run, options["stage"])
    job, generation = run.described_job(), GENERATIONS[options["generation"]]
    if options["moe_rows"]:
        generation = replace(generation, dispatch_rows=_dispatch_rows(options["moe_rows"]))
    _refuse(job, generation, run.name)
    stages = stage_layers(job)
    stage = _chosen_stage(stages, options["stage"])
    own = max(_own_elements(job)) if options["parameters"] == "job" else None
    conventions = Conventions(job, generation, stages[stage], own)
    if run.fills is not None:
        return filled(run, run.fills, conventions, _times(run, conventions, options["times"]))
    head = last_blocks(job.model, with_embedding=True)
    writer = RowWriter(conventions, _times(run, conventions, options["times"]), head)
    parts = writer.parts()
    header = f"{_header(conventions, options['vpp'])}\n{sum(map(len, parts))}\n"
    # The microbatches after the first are one list, and one piece of text.
    text_of = {id(part): "".join(f"{line.text()}\n" for line in part).encode() for part in parts}
    lost = (*_lost(conventions, stages, stage, options), *_beyond_simai(conventions, parts))
    pieces = (header.encode(), *(text_of[id(part)] for part in parts))
    return Written([(f"{job.model.name}.txt", pieces)], lost)


def _refuse_unused(options: Mapping[str, str], used: str) -> None:
    """Refuse options that only the rows of a job have."""
    usual = {each.name: each.default for each in WRITERS.get("aicb").options}
    for name, value in options.items():
        if name != used and value != usual[name]:
            raise ConfigError("applies to jobs; the input is a file without one (or give a job file)", f"option {name}")


def _dispatch_rows(said: str) -> int:
    if said not in ("5", "7"):
        raise ConfigError(f"is {said!r}; it must be 5 or 7", "option moe_rows")
    return int(said)


def _chosen_stage(stages: Sequence[tuple[Blocks, ...]], said: str) -> int:
    """Return the stage whose layers are written: the one that is said, else the first of those that most are like."""
    if not said:
        kinds = [tuple(Counter(layers).items()) for layers in stages]
        return kinds.index(Counter(kinds).most_common(1)[0][0])
    try:
        return whole(said, least=0, most=len(stages) - 1)
    except ValueError as problem:
        raise ConfigError(str(problem), "option stage") from None


def _header(conventions: Conventions, said_vpp: str) -> str:
    """Return the first line; with sequence parallelism a message is a quotient, which AICB writes as a float."""
    generation, parallel = conventions.generation, conventions.job.parallel
    message: float = conventions.activation_bytes
    words = [
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {parallel.tp}",
        *([f"ep: {parallel.ep} pp: {parallel.pp}"] if generation.says_degrees else []),
        *([f"vpp: {_virtual_stages(conventions, said_vpp)}"] if generation.says_vpp else []),
        *([f"ga: {parallel.microbatches} all_gpus: {parallel.world_size}"] if generation.says_degrees else []),
        "checkpoints: 0 checkpoint_initiates: 0",
    ]
    if generation.says_messages:
        message = message / parallel.tp if conventions.sequence_parallel else message
        words.append(f"pp_comm: {message if parallel.pp > 1 else 0}")
    return " ".join(words)


def _virtual_stages(conventions: Conventions, said: str) -> int:
    """Return ``vpp``: what is said, else that of a job with virtual stages, else as AICB the layers of the stage."""
    if not said:
        vpp = conventions.job.parallel.vpp
        return vpp if vpp > 1 else len(conventions.layers)
    return said_vpp(said)


def _times(run: Run, conventions: Conventions, said: str) -> ComputeTimes:
    if not said:
        return EstimatedTimes(conventions, run.calls_s, run.cluster.ranks_per_node)
    written_out = "=" in said and not Path(said).is_file()
    times = parse_times(said, "option times") if written_out else read_aiob(Path(said))
    return MeasuredTimes(conventions, times, "option times" if written_out else said)


def _refuse(job: Job, generation: Generation, name: str) -> None:
    """Refuse what AICB has no rows for, with what to do."""
    parallel, model, zero = job.parallel, job.model, job.sharding.zero
    odd = next((layer for layer in range(model.layers) if not is_transformer(layer_blocks(model, layer))), None)
    moe = model.experts is not None
    alone = not generation.says_degrees
    reasons = {
        f"ASTRA-sim 1.0 has no pipelines; the job has pp {parallel.pp}": alone and parallel.pp > 1,
        "ASTRA-sim 1.0 has no experts": alone and moe,
        f"layer {odd} is {' and '.join(model.names_of(odd or 0))}; AICB has attention and MLP or experts": odd
        is not None,
        f"AICB has no context parallelism; the job has cp {parallel.cp}": parallel.cp > 1,
        "AICB has no rows for ZeRO stage 3, which gathers parameters in each pass; write aicb-physical": zero == 3,
        "AICB trains all weights; the job trains low-rank adapters": job.finetuning.task == "lora",
        "AICB writes experts with sequence parallelism only; set sequence_parallel": moe
        and parallel.tp > 1
        and not job.communication.sequence_parallel,
        f"AICB splits every expert over tp {parallel.tp}; the job has etp {parallel.expert_tp} (set etp = tp)": moe
        and parallel.expert_tp != parallel.tp,
    }
    for reason, holds in reasons.items():
        if holds:
            raise FormatError(f"cannot be written as an AICB workload: {reason}", name)


def _own_elements(job: Job) -> list[Elements]:
    """Return the parameters of a rank of each stage."""
    found, plan = [Elements(0, 0)] * job.parallel.pp, plan_of_job(job)
    for at, each in zip(plan.placement[0], stages_of(job, NODE_RANKS, plan=plan), strict=True):
        weights = each.weights()
        found[at] = Elements(found[at].all + int(weights.total), found[at].experts + int(weights.experts))
    return found


def _beyond_simai(conventions: Conventions, parts: Sequence[Sequence[Line]]) -> Iterator[Note]:
    """Say what SimAI-Analytical cannot take: times and messages of more than 31 bits, sizes beyond its tables."""
    longest_ns = max(max(line.times) for part in (parts[0], parts[1], parts[-2]) for line in part)
    if longest_ns > _MOST_32_BIT:
        text = f"a row computes for {longest_ns / GIGA:.3g} s, and SimAI keeps times in 32 bits of ns (2.147 s)"
        yield Note("simai-long-compute", text)
    if conventions.job.parallel.pp > 1 and conventions.activation_bytes > _MOST_32_BIT:
        yield Note("simai-message", "SimAI stops at a pp_comm above 2^31 - 1 bytes")
    if conventions.tp > 1 and conventions.activation_bytes > _LARGEST_GATHER:
        yield Note("simai-size", "SimAI has no efficiency of all-gathers above 16 GiB, and ends without a result")


def _lost(
    conventions: Conventions, stages: Sequence[tuple[Blocks, ...]], stage: int, options: Mapping[str, str]
) -> Iterator[Note]:
    """Say where the rows are not the job."""
    job, parallel = conventions.job, conventions.job.parallel
    if conventions.own is None:
        found = _own_elements(job)
        yield Note(
            "aicb-parameters",
            f"gradients and parameters are those of {conventions.elements.all:,} parameters on every rank, as AICB "
            f"counts them: embedding (x{conventions.generation.embedding_copies}) and LM head in every stage, no "
            "gates, as many heads of keys and values as of queries; the job's ranks have "
            f"{min(found).all:,} to {max(found).all:,} (--option parameters=job)",
        )
    elif parallel.pp > 1:
        yield Note("aicb-parameters", "gradients and parameters of every stage are those of the largest")
    if len({tuple(Counter(layers).items()) for layers in stages}) > 1:
        numbers = ", ".join(str(len(layers)) for layers in stages)
        text = f"AICB's stages are alike; the job's have {numbers} layers, and not all of the same kinds"
        yield Note(
            "aicb-one-stage", f"{text}: every stage gets the {counted(len(stages[stage]), 'layer')} of stage {stage}"
        )
    vpp = _virtual_stages(conventions, options["vpp"])
    if conventions.generation.says_vpp and vpp != parallel.vpp:
        text = f"the header says vpp {vpp}, AICB's layers of a stage, and the job has {parallel.vpp}"
        yield Note("aicb-vpp", f"{text} (--option vpp={parallel.vpp})")
    elif parallel.vpp > 1 and not conventions.generation.says_vpp:
        yield Note("aicb-vpp", f"the header has no vpp; the job has {parallel.vpp} (read it with --vpp)")
    if not conventions.generation.says_degrees:
        text = f"the file has no degree but tp; the job has dp {parallel.dp} and"
        yield Note("astra-sim-degrees", f"{text} {counted(parallel.microbatches, 'microbatch', 'microbatches')}")
    if not options["times"]:
        yield Note("aicb-host", "host time of a step and of launches has no row; computations are those of the GPU")
    for code, holds, text in _departures(conventions):
        if holds:
            yield Note(code, text)


def _departures(conventions: Conventions) -> tuple[tuple[str, bool, str], ...]:
    """Return what AICB writes of every job alike, and whether this one is another."""
    job, model, parallel = conventions.job, conventions.job.model, conventions.job.parallel
    split = conventions.sequence_parallel
    what = (
        "the reduce-scatter of a column's input gradient with 0 bytes" if split else "no all-reduce of input gradients"
    )
    exchanging = {"mlp", "moe", "shared_experts", "mla_up_proj"}
    again = job.recompute.whole_layers or exchanging & {*job.recompute.recomputed_modules}
    zero, precision = job.sharding.zero, job.precision.dtype
    return (
        ("aicb-backward", parallel.tp > 1, f"AICB writes {what}, so that backward passes communicate less over tp"),
        ("aicb-optimizer", zero != 1, f"AICB writes a distributed optimizer; the job has zero {zero}"),
        (
            "aicb-overlap",
            job.sharding.overlap_grad_reduce,
            "gradients are reduced during the backward pass; the format cannot say that",
        ),
        ("aicb-recompute", bool(again) and parallel.tp > 1, "communications that are recomputed are not repeated"),
        (
            "aicb-tied",
            model.tied_embeddings and parallel.pp > 1,
            "embedding_grads has the bytes of an activation over tp; the job's first and last stage sum up a table",
        ),
        ("aicb-mtp", model.mtp_layers > 0, f"{counted(model.mtp_layers, 'MTP layer')} left out"),
        (
            "aicb-precision",
            precision not in ("bf16", "fp16"),
            f"AICB's activations and parameters have 2 bytes, its gradients 4; the job's precision is {precision}",
        ),
        (
            "aicb-schedule",
            job.pipeline.schedule not in ("1f1b", "interleaved"),
            f"a file has no schedule; the job's is {job.pipeline.schedule} (read it with --schedule)",
        ),
        (
            "aicb-imbalance",
            job.experts.imbalance > 1,
            "experts get equal numbers of tokens (read it with --expert-imbalance)",
        ),
    )


WRITERS.register("aicb")(
    Writer(
        name="aicb",
        title="AICB/SimAI workload",
        write=write,
        one_file=True,
        implied_fields=implied_fields,
        options=(
            WriterOption(
                name="generation",
                help="AICB v1.1 (2024-09), vpp (2024-11) or pp_comm (since 2024-12); or what astra-sim-1.0 reads.",
                default=_NEWEST,
                choices=tuple(GENERATIONS),
            ),
            WriterOption(
                name="moe_rows",
                help="Rows of a layer with experts: 5 as Megatron Core 0.13 dispatches, 7 as before; by generation.",
            ),
            WriterOption(
                name="times",
                help="Measured times instead of ours: a file of AIOB's, or SECTION=US,... with its sections.",
            ),
            WriterOption(
                name="parameters",
                help="Whose gradients and parameters are exchanged: as aicb counts them, or the job's largest stage's.",
                default="aicb",
                choices=("aicb", "job"),
            ),
            WriterOption(
                name="model",
                help="A model, or a job file, whose estimated times fill an AICB file that has none.",
            ),
            WriterOption(name="vpp", help="Virtual stages in the header; by default the job's, else one per layer."),
            WriterOption(name="stage", help="Pipeline stage whose layers are written; by default the commonest."),
        ),
    )
)
