"""Synthetic logs of nccl-tests, in every shape that its versions and launchers write."""


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
