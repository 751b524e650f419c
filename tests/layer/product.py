"""The one place where the tables ask the product.

One layer is what a model of two layers has more than a model of one: whatever is built, merged or split on the way,
that difference is what a step gains by a layer.
"""

from collections import Counter
from functools import cache

from msgspec.structs import replace

from job_parts import slots, workload_of
from model_counts import adapter_parameters, layer_parameters
from traincast.estimate.memory import stage_memory
from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.lowering.plans import plan_of_job
from traincast.model.load import load_model
from traincast.workload.words import Group, Kind, Operation, Phase, Stream

PARTS = {
    "softmax statistics": "softmax",
    "attention scores": "softmax",
    "expert FC1 outputs": "expert up outputs",
}
"""The product's names of what is kept, where the tables have others."""

STATE_GROUPS = ("dp", "edp", "shard", "replica")
"""Groups over which gradients and parameters are exchanged, once for a virtual stage and not for each layer."""

ENDS = {"BACKWARD wgrad": "weight gradient", "WEIGHT_GRADIENT backward": "input gradient"}
"""Passes of the head's weight gradient and of the embedding's gradient, as the product has them."""

PASSES = {
    (Phase.FORWARD, "forward"): "forward",
    (Phase.BACKWARD, "dgrad"): "input gradient",
    (Phase.BACKWARD, "backward"): "input gradient",
    # Kernels whose backward pass is as their forward pass.
    (Phase.BACKWARD, "forward"): "input gradient",
    (Phase.WEIGHT_GRADIENT, "wgrad"): "weight gradient",
    (Phase.WEIGHT_GRADIENT, "forward"): "weight gradient",
    (Phase.RECOMPUTE, "forward"): "recompute",
}


def model_of(name, layers, *, dense=False, window_period=None, mixed=False, capacity=None, further=0):
    """Return a model of so many layers of one kind, and of `further` that predict further tokens.

    Where windows are on some layers only, `window_period` 1 puts them on all. A mixed model has one layer of the other
    kind, too. `capacity` is what an expert takes over the mean.
    """
    layers += int(mixed)
    model = replace(load_model(name), layers=layers, mtp_layers=further)
    if window_period is not None:
        model = replace(model, attention=replace(model.attention, window_period=window_period))
    if model.experts is None:
        return model
    first = layers - int(mixed) if dense else int(mixed)
    return replace(model, experts=replace(model.experts, capacity_factor=capacity, first_dense_layers=first))


_cluster = cache(load_cluster)


def job_of(case, layers=1, **changes):
    """Return the decided job of a case, of one microbatch on one stage unless told otherwise."""
    fields = {"gpus": 1, "vpp": 1, "micro_batch": 1, "recompute": "none", "cluster": "h100"} | case.fields | changes
    cluster = _cluster(fields.pop("cluster"))
    kinds = {name: fields.pop(name) for name in ("window_period", "mixed", "capacity", "further") if name in fields}
    model = model_of(case.model, layers, dense=case.dense, **kinds)
    share = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    fields.setdefault("global_batch", fields["gpus"] // share * fields["micro_batch"])
    return resolve_job(JobRequest(model=model, **fields), cluster)


def _more(of_job, case, **changes):
    """Return what two layers have more than one."""
    fewer, more = (of_job(job_of(case, layers, **changes)) for layers in (1, 2))
    found = {}
    for name in more | fewer:
        counts = Counter(more.get(name, Counter()))
        counts.subtract(fewer.get(name, Counter()))
        found[name] = {key: round(count, 6) for key, count in counts.items() if abs(count) > 1e-6}
    return found


def _kind(call):
    options = dict(call.options)
    if call.family == "activation":
        return options["kind"]
    if call.family == "cast":
        return f"cast to {options['copies']}"
    words = ["causal"] if call.causal else []
    words += [f"window {call.window}"] if call.window else []
    return " ".join([*words, call.family.replace("_", " ")])


def _kernels(job):
    workload, found = workload_of(job), {}
    ops = workload.ops
    for which in ("forward", "backward"):
        for row in slots(workload, which):
            for call, count in ops.calls_T[row] or ():
                phase = Phase(int(ops.phase_T[row]))
                name = PASSES.get((phase, call.direction), f"{phase.name} {call.direction}")
                found.setdefault(name, Counter())[_kind(call), call.shape, call.dtype] += count
    return found


def kernels(case, **changes):
    """Return how often a layer runs each kernel (kind, sizes, type of its inputs), by pass."""
    return {name: counts for name, counts in _more(_kernels, case, **changes).items() if counts}


def recomputed(case, layers, **changes):
    """Return how often all layers of a job run each kernel again."""
    return dict(_kernels(job_of(case, layers, **changes)).get("recompute", {}))


def _less(of_job, case, **changes):
    """Return what a model has beside its layers: twice what it has with one layer, less what it has with two."""
    layer, one = _more(of_job, case, **changes), of_job(job_of(case, 1, **changes))
    found = {}
    for name, counts in one.items():
        rest = {key: round(count - layer.get(name, {}).get(key, 0), 6) for key, count in counts.items()}
        found[name] = {key: count for key, count in rest.items() if count}
    return found


def ends(case, **changes):
    """Return kernels and exchanges of one microbatch beside its layers: embedding, head and loss, by pass."""
    found = {}
    for name, counts in _less(_kernels, case, **changes).items():
        found.setdefault(ENDS.get(name, name), {}).update(counts)
    exchanged = _less(_exchanges, case, **changes)
    return found, {name: exchanged.get(name, {}) for name in ("forward", "backward")}


def step_ends(case, **changes):
    """Return what is exchanged once a step, beside the gradients and parameters of layers."""
    found = _less(_exchanges, case, **changes).get("end", {})
    return {key: often for key, often in found.items() if key[0] not in STATE_GROUPS}


def of_further_token(case):
    """Return how often kernels and exchanges run for a layer that predicts a further token, by pass."""
    jobs = [job_of(case, further=each) for each in (1, 0)]

    def more(of_job, named):
        with_it, without = (of_job(job) for job in jobs)
        found = {}
        for name, counts in with_it.items():
            kept = found.setdefault(named.get(name, name), {})
            for key, often in counts.items():
                gained = round(often - without.get(name, {}).get(key, 0), 6)
                if gained and key[0] not in STATE_GROUPS:
                    kept[key] = kept.get(key, 0) + gained
        return {name: counts for name, counts in found.items() if counts}

    return more(_kernels, ENDS), more(_exchanges, {})


def attention_kernel(case):
    """Return the generation of the attention kernel that a layer runs."""
    calls = [
        call for row in workload_of(job_of(case)).ops.calls_T for call, _ in row or () if "attention" in call.family
    ]
    (found,) = {dict(call.options).get("kernel", "unfused") for call in calls}
    return found


def _exchanges(job, gpus_per_node=8):
    workload, found = workload_of(job, gpus_per_node), {}
    ops = workload.ops
    for which in ("start", "forward", "backward", "end"):
        for row in slots(workload, which):
            if ops.kind_T[row] == Kind.COLLECTIVE:
                phase = Phase(int(ops.phase_T[row]))
                name = which if phase is not Phase.RECOMPUTE else "recompute"
                group = Group(int(ops.group_T[row])).name.lower()
                key = group, Operation(int(ops.operation_T[row])).name.lower(), int(ops.size_bytes_T[row])
                found.setdefault(name, Counter())[key] += float(ops.repeats_T[row])
    return found


def exchanges(case, *, gpus_per_node=8, **changes):
    """Return how often a layer does each exchange of its activations (group, operation, bytes), by pass."""

    def of_layer(job):
        found = _exchanges(job, gpus_per_node)
        return {
            name: Counter({key: count for key, count in counts.items() if key[0] not in STATE_GROUPS})
            for name, counts in found.items()
        }

    return {name: counts for name, counts in _more(of_layer, case, **changes).items() if counts}


def _state(job):
    total = Counter()
    for counts in _exchanges(job).values():
        for (group, operation, size), often in counts.items():
            if group in STATE_GROUPS:
                total[group, operation] += size * often
    return {"step": total}


def state_bytes(case, **changes):
    """Return the bytes of gradients and parameters that a layer adds to a step's exchanges, by (group, operation)."""
    return _more(_state, case, **changes)["step"]


def all_state_bytes(case, layers, **changes):
    """Return those of a whole model, over a rank of each stage."""
    return dict(_state(job_of(case, layers, **changes))["step"])


def memory(case, layers=1, stage=0, **changes):
    """Return all terms of the memory of one stage of a job, and how many microbatches are in flight there."""
    job = job_of(case, layers, **changes)
    found, flights = Counter(), {1}
    for name, size in stage_memory(job, plan_of_job(job))[stage].terms:
        part, _, number = name.partition(" x ")
        found[PARTS.get(part, part)] += size
        flights.add(int(number.split()[0]) if number else 1)
    return found, max(flights)


def peak(case, layers=1, stage=0, **changes):
    """Return the memory of one stage of a job as it is reported."""
    job = job_of(case, layers, **changes)
    return stage_memory(job, plan_of_job(job))[stage]


def _terms(job):
    (stage,) = stage_memory(job, plan_of_job(job))
    return {"terms": Counter(dict(stage.terms))}


def saved(case, **changes):
    """Return the bytes that a layer keeps of one microbatch, by part."""
    lasting = ("parameters", "gradients", "optimizer", "passing activations", "allocator slack", "gathered layers")
    lasting += ("unused weight gradients", "fp32 gradients of the step", "8-bit copies of weights")
    found = Counter()
    for name, size in _more(_terms, case, **changes)["terms"].items():
        if name not in lasting:
            found[PARTS.get(name, name)] += size
    return found


def states(case, **changes):
    """Return the bytes of parameters, gradients and optimizer that a layer adds to a rank."""
    found = _more(_terms, case, **changes)["terms"]
    names = ("parameters", "gradients", "optimizer", "8-bit copies of weights", "gathered layers")
    return {name: found[name] for name in names if name in found}


def parameters(case):
    """Return the parameters of a layer of the whole model, as the model is counted."""
    return layer_parameters(model_of(case.model, 1, dense=case.dense), 0).total


def held_in_memory(case):
    """Return the elements of a layer that one rank keeps, by the bytes of its 16-bit parameters."""
    return states(case, zero=0)["parameters"] / 2


def held_in_workload(case):
    """Return the elements of a layer that one rank's optimizer updates where nothing is sharded."""
    return updated(case, zero=0)


def updated(case, **changes):
    """Return the parameters of a layer that one rank's optimizer updates."""

    def of_step(job):
        workload, found = workload_of(job), Counter()
        for row in slots(workload, "end"):
            for call, count in workload.ops.calls_T[row] or ():
                if call.family == "optimizer":
                    found["elements"] += call.shape[0] * count
        return {"end": found}

    return _more(of_step, case, **changes)["end"]["elements"]


WORDS = {
    "embedding forward": "embedding",
    "embedding backward": "embedding",
    "layers forward": "layers",
    "layers backward": "layers",
    "layers weight gradient": "weight gradients",
    "layers recompute": "recompute",
    "modules recompute": "recompute",
    "LM head forward": "head",
    "LM head backward": "head",
    "step overhead": "host",
    "P2P launch overhead": "host",
    "launches of layers": "host",
    "waits of the host": "idle host",
}


def program(case, layers=2, **changes):
    """Return what a rank of each virtual stage runs, in order: the slots of every microbatch, and the ends of a step.

    ``launch`` goes before what the rank does not wait for; a number after it says how often an exchange runs, or the
    microseconds that the host needs.
    """
    job = job_of(case, layers, **changes)
    workload = workload_of(job)
    ops, template = workload.ops, workload.templates[0]

    def word(row):
        kind, launched = Kind(int(ops.kind_T[row])), "" if ops.blocking_T[row] else "launch "
        if kind is Kind.WAIT:
            return f"wait {Stream(int(ops.waits_for_T[row])).name.lower()}"
        if kind is Kind.COLLECTIVE:
            group, operation = Group(int(ops.group_T[row])).name, Operation(int(ops.operation_T[row])).name
            return f"{launched}{group} {operation} {float(ops.repeats_T[row]):.4g}".lower()
        if kind is Kind.GAP:
            return f"{launched}{WORDS[ops.name_T[row]]} {float(ops.duration_s_T[row]) * 1e6:.4g}"
        return WORDS.get(ops.name_T[row], ops.name_T[row])

    def words(segment):
        return [word(row) for row in workload.segments[segment].tolist()] if segment >= 0 else []

    found = {
        name: [[words(segment) for segment in row] for row in held.tolist()]
        for name, held in (("forward", template.forward_QM), ("backward", template.backward_QM))
    }
    for name, held in (("start", template.start_P), ("end", template.end_P)):
        found[name] = [words(segment) for segment in held.tolist()]
    before = template.before_recv_DQM
    found["before a message"] = [] if before is None else words(before.ravel().tolist()[0])
    return found


def adapters(name, rank, *, mlp):
    """Return the parameters of low-rank adapters beside the projections of a whole model."""
    return adapter_parameters(load_model(name), rank, mlp=mlp)


def bytes_of_a_step(case, **changes):
    """Return the bytes that the optimizer's kernel moves for each parameter; None where it is Adam in fp32."""
    workload = workload_of(job_of(case, **changes))
    calls = [call for row in slots(workload, "end") for call, _ in workload.ops.calls_T[row] or ()]
    (found,) = (dict(call.options).get("bytes_per_parameter") for call in calls if call.family == "optimizer")
    return None if found is None else float(found)
