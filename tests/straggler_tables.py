"""Made-up traces of the straggler study: pipelines of some steps, with whatever makes one slow."""

import csv
from itertools import product

MESSAGE_S = 4e-4
HEADER = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")


def trace(forward_s, *, dp=2, pp=2, microbatches=4, steps=(3, 5), pause_s=None, reduce_s=None, tp=1, schedule=None):
    """Return the rows of a trace with all forward passes before all backward ones, or as `schedule` has them.

    `forward_s` gives the forward time of (step, dp rank, stage, microbatch), a backward pass takes twice that;
    `pause_s` gives what the host adds before a forward pass, `reduce_s` the gradient reduction of (step, stage).
    """
    rows = []
    for step in steps:
        begin = 100.0 * step
        times = [(schedule or _replica)(forward_s, pause_s, step, rank, pp, microbatches, begin) for rank in range(dp)]
        rows += [row for replica, _ in times for row in replica]
        ends = {(rank, stage): times[rank][1][stage] for rank, stage in product(range(dp), range(pp))}
        summed = dict(ends)
        for rank in range(dp):
            summed[rank, 0] = summed[rank, pp - 1] = max(ends[rank, 0], ends[rank, pp - 1]) + 6e-4
        reduced = {}
        for stage in range(pp):
            took = 0.01 if reduce_s is None else reduce_s(step, stage)
            reduced[stage] = max(summed[rank, stage] for rank in range(dp)) + took
        normed = max(reduced.values()) + 1e-3
        for rank, stage in product(range(dp), range(pp)):
            end = ends[rank, stage]
            after = [("gc", end, end), ("layernorm-grads-all-reduce", end, end + 1e-4)]
            if stage in (0, pp - 1):
                after.append(("embedding-grads-all-reduce", end + 1e-4, summed[rank, stage]))
            after.append(("grads-reduce-scatter", max(end + 1e-4, summed[rank, stage]), reduced[stage]))
            after.append(("optimizer-clip-main-grad", reduced[stage], normed))
            after.append(("optimizer", normed, normed + 5e-3))
            rows += [_row(rank, stage, step, *each) for each in after]
    return [
        {**row, "rank": row["stage"] * dp * tp + row["dp_rank"] * tp, "gmc": row["stage"] if row["mc"] == 0 else -1}
        for row in rows
    ]


def _row(rank, stage, step, name, start, end, seq=0, chunk=-1, microbatch=-1):
    values = (rank, stage, 0, step, name, start, end - start, seq, chunk, microbatch, -1)
    return dict(zip(HEADER, values, strict=True))


def _replica(forward_s, pause_s, step, rank, pp, microbatches, begin):
    rows, free, done = [], [begin + 1e-3] * pp, {}
    rows += [_row(rank, stage, step, "params-all-gather", begin, begin + 1e-3, 0, 0) for stage in range(pp)]
    for word, order in (("forward", range(pp)), ("backward", range(pp - 1, -1, -1))):
        launched = list(free)
        for microbatch in range(microbatches):
            before = None
            for stage in order:
                if before is not None:
                    source, ready = before
                    arrived = max(ready, launched[stage]) + MESSAGE_S
                    rows.append(_row(rank, source, step, f"{word}-send", ready, arrived, microbatch))
                    rows.append(_row(rank, stage, step, f"{word}-recv", launched[stage], arrived, microbatch))
                    free[stage] = max(free[stage], arrived)
                start = free[stage]
                if word == "forward" and pause_s is not None:
                    start += pause_s(step, rank, stage, microbatch)
                took = forward_s(step, rank, stage, microbatch) * (1 if word == "forward" else 2)
                rows.append(_row(rank, stage, step, f"{word}-compute", start, start + took, microbatch, 0, microbatch))
                free[stage] = launched[stage] = start + took
                before = stage, start + took
        done = dict(enumerate(free))
    return rows, done


def one_f_one_b(forward_s, pause_s, step, rank, pp, microbatches, begin):
    """Return what a replica runs in 1F1B with messages that hold the host back, as Megatron-LM without overlap does.

    A stage sends an activation and receives a gradient in one call, and the other way round; both take as long as the
    call. Each call begins when what came before it has ended.
    """
    calls = [list(_calls(stage, pp, microbatches)) for stage in range(pp)]
    now, at, posted = [begin + 1e-3] * pp, [0] * pp, {}
    rows = [_row(rank, stage, step, "params-all-gather", begin, begin + 1e-3, 0, 0) for stage in range(pp)]
    while any(at[stage] < len(calls[stage]) for stage in range(pp)):
        for stage in range(pp):
            if at[stage] == len(calls[stage]):
                continue
            call = calls[stage][at[stage]]
            if call[0][0] == "compute":
                _, word, microbatch = call[0]
                start = now[stage] + (pause_s(step, rank, stage, microbatch) if pause_s and word == "forward" else 0)
                took = forward_s(step, rank, stage, microbatch) * (1 if word == "forward" else 2)
                now[stage] = start + took
                rows.append(_row(rank, stage, step, f"{word}-compute", start, now[stage], microbatch, 0, microbatch))
            else:
                for way, word, microbatch in call:
                    posted.setdefault((stage, way, word, microbatch), now[stage])
                met = [posted.get(_other(stage, *message)) for message in call]
                if None in met:
                    continue
                end = max(now[stage], *met) + MESSAGE_S
                rows += [_row(rank, stage, step, f"{word}-{way}", now[stage], end, m) for way, word, m in call]
                now[stage] = end
            at[stage] += 1
    return rows, dict(enumerate(now))


def _calls(stage, pp, microbatches):
    """Yield what a stage does one after the other: a computation, or messages of one call."""
    before, after = stage > 0, stage < pp - 1
    warmup = min(pp - stage - 1, microbatches)
    for microbatch in range(warmup):
        yield from ([[("recv", "forward", microbatch)]] if before else [])
        yield [("compute", "forward", microbatch)]
        yield from ([[("send", "forward", microbatch)]] if after else [])
    if before and warmup < microbatches:
        yield [("recv", "forward", warmup)]
    for number in range(microbatches - warmup):
        forward = number + warmup
        yield [("compute", "forward", forward)]
        yield from ([[("send", "forward", forward), ("recv", "backward", number)]] if after else [])
        yield [("compute", "backward", number)]
        if before:
            following = [("recv", "forward", forward + 1)] if forward + 1 < microbatches else []
            yield [("send", "backward", number), *following]
    for microbatch in range(microbatches - warmup, microbatches):
        yield from ([[("recv", "backward", microbatch)]] if after else [])
        yield [("compute", "backward", microbatch)]
        yield from ([[("send", "backward", microbatch)]] if before else [])


def _other(stage, way, word, microbatch):
    """Return the message that meets one."""
    peer = stage + (1 if (word == "forward") == (way == "send") else -1)
    return peer, "recv" if way == "send" else "send", word, microbatch


def write(path, rows, meta=None):
    """Write a trace as CSV, and its meta.yaml beside it."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(
            {**row, "start_ts": f"{row['start_ts']:.6f}", "duration": f"{row['duration']:.6f}"} for row in rows
        )
    if meta is not None:
        path.with_name("meta.yaml").write_text("".join(f"{name}: {value}\n" for name, value in meta.items()))
    return path
