"""Profiler traces for tests: events by their columns, written as Kineto writes them."""

import gzip
import json

HOST, MAIN, AUTOGRAD = 4711, 4711, 4822


class Writer:
    """Collects the events of one rank; times are in microseconds from the begin of the trace."""

    def __init__(self, rank=0, world=1, base_us=4203669603000.0, groups=()):
        self.rank, self.base_us, self.number, self.events = rank, base_us, 1, []
        self.top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
        self.tail = {"traceName": f"/traces/trace_{rank}.json", "displayTimeUnit": "ms"}
        if world is not None:
            self.top["distributedInfo"] = {
                "backend": "nccl",
                "rank": rank,
                "world_size": world,
                "pg_count": len(groups),
                "pg_config": [
                    {
                        "pg_name": name,
                        "pg_desc": desc,
                        "backend_config": "cuda:nccl",
                        "pg_size": len(ranks),
                        "ranks": ranks,
                    }
                    for name, desc, ranks in groups
                ],
            }

    def event(self, cat, name, start, end, tid, pid=HOST, **args):
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": round(self.base_us + start, 3),
                "dur": round(end - start, 3),
                "args": args,
            }
        )

    def step(self, number, start, end):
        self.event("user_annotation", f"ProfilerStep#{number}", start, end, MAIN, **{"External id": 9000 + number})

    def op(self, name, start, end, tid=MAIN, **args):
        self.event("cpu_op", name, start, end, tid, **args)

    def call(self, name, start, end, tid=MAIN, correlation=0):
        self.event("cuda_runtime", name, start, end, tid, cbid=211, correlation=correlation)

    def work(
        self, name, launch, start, end, stream=7, cat="kernel", tid=MAIN, call="cudaLaunchKernel", took=4.0, **args
    ):
        """Write a launch with its flow, and what it launched; return its number."""
        number, self.number = self.number, self.number + 1
        external = {"External id": args.pop("external", number)}
        if launch is not None:
            self.call(call, launch, launch + took, tid, number)
            self._flow("s", number, HOST, tid, launch)
        own = {"device": 0, "context": 1, "stream": stream, "correlation": number}
        self.event(cat, name, start, end, stream, 0, **external, **own, **args)
        self._flow("f", number, 0, stream, start)
        return number

    def _flow(self, ph, number, pid, tid, at):
        bound = {"bp": "e"} if ph == "f" else {}
        event = {"ph": ph, "id": number, "pid": pid, "tid": tid, "ts": round(self.base_us + at, 3)}
        self.events.append({**event, "cat": "ac2g", "name": "ac2g", **bound})

    def collective(self, launch, start, end, name="allreduce", elements=1 << 20, out=None, stream=20, **more):
        """Write a collective's kernel with its arguments; fields of the group are `group`, `desc`, `ranks`, `seq`."""
        letters = {
            "allreduce": "AllReduce_Sum",
            "_allgather_base": "AllGather",
            "_reduce_scatter_base": "ReduceScatter_Sum",
        }
        kernel = f"ncclDevKernel_{letters.get(name, 'SendRecv')}_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        ranks = more.pop("ranks", [0, 1])
        args = {
            "Collective name": name,
            "In msg nelems": elements,
            "Out msg nelems": elements if out is None else out,
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": more.pop("group", "3"),
            "Process Group Description": more.pop("desc", "TENSOR_MODEL_PARALLEL_GROUP"),
            "Process Group Ranks": str(ranks),
        }
        for key, title in (("seq", "Seq"), ("comms", "Comms Id"), ("source", "Src Rank"), ("target", "Dst Rank")):
            if key in more:
                args[title] = more.pop(key)
        return self.work(kernel, launch, start, end, stream, **args, **more)

    def text(self, indent=True):
        """Return the document: pretty as Kineto's, or on one line as json.dump writes it."""
        end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": self.base_us + 1e6}
        document = {**self.top, "traceEvents": [*self.events, end], **self.tail}
        if not indent:
            return json.dumps(document)
        lines = ",\n".join("  " + json.dumps(event) for event in document["traceEvents"])
        head = json.dumps(self.top)[:-1]
        return f'{head},\n  "traceEvents": [\n{lines}\n  ],\n  {json.dumps(self.tail)[1:]}\n'

    def write(self, path, indent=True):
        data = self.text(indent).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path
