"""Write a job as a NeuSight operator forecast: one microbatch of one rank as rows, times in ms, sizes in elements.

Rows, columns and order are those of NeuSight's exporter (`traincast.formats.neusight.grammar`); times are ours.
"""

from collections.abc import Callable, Iterator, Mapping

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.formats.neusight.gpt2 import gpt2_nodes, is_gpt2
from traincast.formats.neusight.grammar import GRADIENT_SUFFIX, MILLISECONDS_PER_SECOND
from traincast.formats.neusight.graph import Calls, Node, module_nodes
from traincast.formats.neusight.rewrite import FORMATS_OF_NEUSIGHT, rewritten
from traincast.formats.neusight.sniff import COLUMNS
from traincast.formats.writer import WRITERS, Run, Writer, WriterOption, Written
from traincast.job.job import Job
from traincast.job.share import rank_share
from traincast.lowering.stage import stage_layers
from traincast.units import counted

_NONE = ("None", 0)
_REDUCED = "ALLREDUCE_ASYNC"


def write(run: Run, options: Mapping[str, str]) -> Written:
    """Return the forecast of a job's operators, or a file of NeuSight's with the times of its workload."""
    if run.job is None and {each.format for each in run.workload.inputs} <= FORMATS_OF_NEUSIGHT:
        return rewritten(run)
    job = run.described_job()
    _refuse(job, run.name)
    listed = _listed(options["layers"], job)
    alone = options["times"] == "alone"
    seconds = run.calls_alone_s if alone else run.calls_s
    rows = _Rows(run, job, seconds, backward=options["backward"] == "yes")
    lines = ["\t".join(COLUMNS)]
    traced = _is_traced(options["graph"], job)
    share = rank_share(job, run.cluster.ranks_per_node)
    if traced:
        lines += rows.lines(gpt2_nodes(share, listed))
    else:
        stages, first = stage_layers(job), 0
        if listed < job.model.layers:
            stages = [stages[0][:listed]]
        for stage, layers in enumerate(stages):
            ends = stage == len(stages) - 1
            lines += rows.lines(module_nodes(share, layers, first, begins=stage == 0, ends=ends))
            first += len(layers)
            if not ends:
                lines.append(rows.message(stage))
    text = "".join(f"{line}\n" for line in lines)
    return Written([(f"{job.model.name}.tsv", [text.encode()])], tuple(_lost(job, listed, traced=traced, alone=alone)))


class _Rows:
    """Makes the lines of nodes."""

    def __init__(self, run: Run, job: Job, seconds: Callable[[Calls], float], *, backward: bool) -> None:
        self.run, self.job, self.seconds, self.backward = run, job, seconds, backward

    def lines(self, nodes: Iterator[Node]) -> Iterator[str]:
        """Yield the line of each node, before it that of its gradient."""
        for node in nodes:
            if node.gradients and self.job.parallel.dp > 1:
                yield _line(f"{node.name}{GRADIENT_SUFFIX}", backward_comm=(_REDUCED, node.gradients))
            if node.forward_comm or node.backward_comm:
                yield _line(
                    node.name, forward_comm=node.forward_comm or _NONE, backward_comm=node.backward_comm or _NONE
                )
            else:
                backward = self.seconds(node.backward) if self.backward else 0.0
                yield _line(node.name, self.seconds(node.forward), backward, weight_grad_s=0.0)

    def message(self, stage: int) -> str:
        """Return the line that hands a stage's activation, and its gradient, over."""
        size = int(self.run.workload.message_bytes_Q[stage]) // rank_share(self.job).execution.element_bytes
        return _line(f"send_{stage}", forward_comm=("SENDRECV", size), backward_comm=("SENDRECV", size))


def _line(
    name: str,
    forward_s: float = 0,
    backward_s: float = 0,
    weight_grad_s: float = 0,
    *,
    forward_comm: tuple[str, int] = _NONE,
    backward_comm: tuple[str, int] = _NONE,
) -> str:
    cells: list[object] = [name]
    for time_s, comm in ((forward_s, forward_comm), (backward_s, backward_comm), (weight_grad_s, _NONE)):
        cells += [time_s * MILLISECONDS_PER_SECOND if time_s else time_s, *comm]
    return "\t".join(map(str, [*cells, 0]))


def _refuse(job: Job, name: str) -> None:
    """Refuse what the format cannot say, with the reason."""
    parallel = job.parallel
    if parallel.cp > 1 or parallel.ep > 1 or parallel.expert_tp != parallel.tp:
        said = f"cp {parallel.cp}, ep {parallel.ep}, etp {parallel.expert_tp}"
        raise FormatError(
            f"has {said}: rows of a NeuSight forecast communicate over dp, tp or between stages alone; write it as "
            "Chakra or rank traces",
            name,
        )


def _listed(said: str, job: Job) -> int:
    """Return how many layers are listed."""
    if said == "all":
        return job.model.layers
    if not said.isdecimal() or not 1 <= int(said) <= job.model.layers:
        raise ConfigError(f"is {said!r}; it must be all, or a number from 1 to {job.model.layers}", "option layers")
    if int(said) < job.model.layers and job.parallel.pp > 1:
        raise ConfigError(f"is {said}; a pipeline of {job.parallel.pp} stages needs all layers", "option layers")
    return int(said)


def _is_traced(said: str, job: Job) -> bool:
    """Say whether rows are the nodes of GPT-2's traced graph."""
    reasons = {
        f"{job.model.name} is not of its kind": not is_gpt2(job.model),
        f"its layers are on tp {job.parallel.tp} and pp {job.parallel.pp}": job.parallel.tp * job.parallel.pp > 1,
        f"attention runs as {job.kernels.attention}": job.kernels.attention != "unfused",
        "adapters are trained": job.finetuning.task == "lora",
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if said == "gpt2" and why is not None:
        raise ConfigError(f"is of GPT-2 on one rank without fused kernels, and {why}; leave it out", "option graph")
    return said != "modules" and why is None


def _lost(job: Job, listed: int, *, traced: bool, alone: bool) -> Iterator[Note]:
    parallel, dtype = job.parallel, job.precision.dtype
    width = rank_share(job).execution.element_bytes
    element = "fp32" if width == 4 else "bf16"
    yield Note("neusight-dtype", f"the file counts elements and says no type: read it with --dtype {element} ({dtype})")
    yield Note("neusight-optimizer", "the update of the parameters and the host's work have no rows")
    if alone:
        text = "times are of operators alone, without what whole runs taught of steps; --option times=step has them"
        yield Note("neusight-alone", text)
    ranks = [f"--{name} {degree}" for name, degree in (("tp", parallel.tp), ("dp", parallel.dp)) if degree > 1]
    if ranks:
        yield Note("neusight-ranks", f"the file says no number of ranks: read it with {' '.join(ranks)}")
    if parallel.microbatches > 1:
        many = parallel.microbatches
        yield Note("neusight-microbatches", f"rows are one microbatch of {many}: read it with --microbatches {many}")
    if listed < job.model.layers:
        text = f"{counted(listed, 'layer')} of {job.model.layers} listed: read it with --layers {job.model.layers}"
        yield Note("neusight-layers", text)
    if parallel.vpp > 1:
        yield Note("neusight-vpp", f"stages have no virtual stages: the {parallel.vpp} of a rank follow each other")
    zero = job.sharding.zero
    if zero > 0 and parallel.dp > 1:
        yield Note("neusight-zero", f"ZeRO stage {zero}: gradients are written as all-reduces, parameters as held")
    if job.recompute.granularity != "none":
        yield Note("neusight-recompute", f"recomputation ({job.recompute.granularity}) has no rows")
    if traced and parallel.dp > 1:
        yield Note(
            "neusight-bias", "lm_head_grad counts a bias that the model does not have, as NeuSight's exporter does"
        )


WRITERS.register("neusight")(
    Writer(
        name="neusight",
        title="NeuSight operator forecast",
        write=write,
        one_file=True,
        options=(
            WriterOption(
                name="layers",
                help="Layers that are listed: all, or the first so many, as NeuSight lists one (without a pipeline).",
                default="all",
            ),
            WriterOption(
                name="backward",
                help="Whether rows have times of the backward pass; NeuSight traces them in training mode alone.",
                default="yes",
                choices=("yes", "no"),
            ),
            WriterOption(
                name="times",
                help="Times of operators alone, as NeuSight forecasts them, or in a step, by what whole runs taught.",
                default="alone",
                choices=("alone", "step"),
            ),
            WriterOption(
                name="graph",
                help="Rows: modules of the layers, or of GPT-2 without fused kernels the nodes that torch.fx traces.",
                default="auto",
                choices=("auto", "modules", "gpt2"),
            ),
        ),
    )
)
