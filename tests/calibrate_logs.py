"""Synthetic logs of nccl-tests, in every shape that its versions and launchers write."""

import json


def _head(middle, wrong):
    times = f"    time   algbw   busbw {wrong:>6}"
    return f"#       size         count      type{middle}{times * 2}"


HEADS = {
    "root": _head("   redop    root", "#wrong"),
    "redop": _head("   redop", "error"),
    "plain": _head("", "error"),
}
MIDDLES = {"root": "float     sum      -1", "redop": "float     sum", "plain": "float"}


def nccl_log(
    rows, *, op="all_reduce", hosts=("node-0",) * 8, shape="root", gpu="NVIDIA A100-SXM4-40GB", binary=True, busbw=0.8
):
    """Return a log; a row is (size, out of place in us, in place in us)."""
    lines = [f"$ mpirun -np 8 ./build/{op}_perf -b 8 -e 1G -f 2"] if binary else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor)", "#", "# Using devices"]
    lines += [
        f"#  Rank {rank:2} Group  0 Pid {4000 + rank} on {host:>10} device {rank % 8} [0x{rank:02x}] {gpu}"
        for rank, host in enumerate(hosts)
    ]
    lines += [
        "#",
        "#                                             out-of-place                       in-place",
        HEADS[shape],
        "#        (B)    (elements)                   (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    rates = f"{0.5:7} {busbw:7}"
    lines += [
        f"{size:12} {size // 4:12} {MIDDLES[shape]} {out:>8} {rates}      0 {into:>8} {rates}    N/A"
        for size, out, into in rows
    ]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 42.0", "#", ""])


def with_mpi_marks(text):
    """Mark every line, and one host name in its middle, as mpirun --tag-output does."""
    marked = [f"[1,0]<stdout>:{line}" for line in text.splitlines()]
    return "\n".join(line.replace("on     node-", "on     no[1,3]<stdout>:de-", 1) for line in marked) + "\n"


def nccl_report(rows, *, op="all_reduce", hosts=("node-0",) * 8, gpu="NVIDIA A100-SXM4-40GB", time="time"):
    """Return a report of option -J: src/util.cu of nccl-tests 2.17.8; a row is as in `nccl_log`, None for not run."""

    def timing(us):
        if us is None:
            return None
        return {time: us, "alg_bw": 0.5, "bus_bw": 0.8, "nwrong": 0.0}

    devices = [
        {"rank": rank, "group": 0, "pid": 4000, "hostname": host, "device": rank % 8, "device_info": gpu}
        for rank, host in enumerate(hosts)
    ]
    results = [
        {
            **{"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"},
            **{"out_of_place": timing(out), "in_place": timing(into), "actual_iterations": 20},
        }
        for size, out, into in rows
    ]
    document = {
        **{
            "version": 1,
            "start_time": "2026-03-01 10:00:00",
            "args": [f"./build/{op}_perf", "-J", "r.json"],
        },
        **{"env": ["HOME=/root"], "nccl_version": 22703, "config": {"nthreads": 1, "devices": devices}},
        **{"results": results, "out_of_bounds": {"count": 0, "okay": "true"}, "errors": []},
    }
    return json.dumps(document)
