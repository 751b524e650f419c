"""The words of Echo's rank traces, and what they mean here.

Source: fwyc0573/Megatron-LM (the tracer of NetX-lab/Echo); names that its data files and
its simulator use, with the DeepSpeed names that the simulator also knows.
"""

from traincast.workload.words import Group, Operation, OverlapClass

GROUPS: dict[str, Group] = {
    "tp": Group.TP,
    "cp": Group.CP,
    "pp": Group.PP,
    "dp": Group.DP,
    "mp": Group.MP,
    "ep": Group.EMB,  # the embedding group, not the expert group
    "emb": Group.EMB,
    "pep": Group.EMB,  # position embedding
    "exp": Group.EP,
    "exp_tp": Group.ETP,
    "exp_dp": Group.EDP,
    "ep_dp": Group.EDP,
}
"""Groups by the tracer's name; ``ep`` is the embedding group, ``exp`` the expert group."""

COMMUNICATIONS: dict[str, Operation] = {
    "allreduce": Operation.ALL_REDUCE,
    "all_reduce": Operation.ALL_REDUCE,
    "broadcast": Operation.BROADCAST,
    "allgather": Operation.ALL_GATHER,
    "all_gather": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "reducescatter": Operation.REDUCE_SCATTER,
    "all_to_all": Operation.ALL_TO_ALL,
    "alltoall": Operation.ALL_TO_ALL,
    "reduce": Operation.REDUCE,
    "gather": Operation.GATHER,
    "scatter": Operation.SCATTER,
    "send_recv": Operation.SEND_RECV,
}
"""Communications by the tracer's name, in both spellings."""

V_FORMS: dict[str, Operation] = {
    "allgatherv": Operation.ALL_GATHER,
    "all_gather_v": Operation.ALL_GATHER,
    "reduce_scatter_v": Operation.REDUCE_SCATTER,
    "reducescatterv": Operation.REDUCE_SCATTER,
    "all_to_all_v": Operation.ALL_TO_ALL,
    "alltoallv": Operation.ALL_TO_ALL,
    "gatherv": Operation.GATHER,
    "scatterv": Operation.SCATTER,
}
"""Forms in which every rank has a piece of any size. Source: the names of MPI and of PyTorch's coalesced calls."""
COMMUNICATIONS |= V_FORMS

OPERATION_NAMES: dict[str, str] = {
    "calcu_loss": "loss_func",
    "exp_dp_allreduce": "edp_allreduce",
    "ep_dp_allreduce": "edp_allreduce",
    "ep_allreduce": "emb_allreduce",
    "pep_allreduce": "pos_emb_allreduce",
    "tp_reducescatter": "tp_reduce_scatter",
    "dp_reducescatter": "dp_reduce_scatter",
    "exp_reducescatter": "exp_reduce_scatter",
    "cp_reducescatter": "cp_reduce_scatter",
    "LoadMicroBatch": "get_batch",
    "ForwardPass": "forward_step",
    "BackwardPass": "backward_step",
    "OptimizerStep": "optimizer_step",
    "SendActivation": "send_forward",
    "RecvActivation": "recv_forward",
    "SendGrad": "send_backward",
    "RecvGrad": "recv_backward",
    "ReduceGrads": "dp_allreduce",
    "ReduceTiedGrads": "emb_allreduce",
}
"""Operations that go by another name here; every other name is kept."""

MESSAGES = frozenset({"send_forward", "recv_forward", "send_backward", "recv_backward"})
"""Operations that are one end of a message between pipeline stages."""

COLLECTIVES: dict[str, tuple[Group, Operation]] = {
    "dp_allreduce": (Group.DP, Operation.ALL_REDUCE),
    "dp_reduce_scatter": (Group.DP, Operation.REDUCE_SCATTER),
    "edp_allreduce": (Group.EDP, Operation.ALL_REDUCE),
    "emb_allreduce": (Group.EMB, Operation.ALL_REDUCE),
    "pos_emb_allreduce": (Group.EMB, Operation.ALL_REDUCE),
    "tp_allreduce": (Group.TP, Operation.ALL_REDUCE),
    "tp_allgather": (Group.TP, Operation.ALL_GATHER),
    "tp_reduce_scatter": (Group.TP, Operation.REDUCE_SCATTER),
    "tp_all_to_all": (Group.TP, Operation.ALL_TO_ALL),
    "tp_broadcast": (Group.TP, Operation.BROADCAST),
    "tp_load_batch_broadcast": (Group.TP, Operation.BROADCAST),
    "exp_all_to_all": (Group.EP, Operation.ALL_TO_ALL),
    "exp_allgather": (Group.EP, Operation.ALL_GATHER),
    "exp_reduce_scatter": (Group.EP, Operation.REDUCE_SCATTER),
    "cp_reduce_scatter": (Group.CP, Operation.REDUCE_SCATTER),
    "ddp_grad_comm": (Group.DP, Operation.ALL_REDUCE),
}
"""Operations that are one collective as a whole."""

WORK = frozenset({"get_batch", "forward_step", "loss_func", "backward_step", "optimizer_step"})
"""Operations that compute, with the collectives inside them as sub-operations."""

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element, by PyTorch's name without ``torch.``."""

ALIASES: dict[str, str] = {
    "input_shape": "input__shape",
    "input_.shape": "input__shape",
    "input_dtype": "input__dtype",
    "input_.dtype": "input__dtype",
    "func.name": "func_name",
}
"""Other spellings of a field's name (older logs) and the usual one."""

SUB_OPERATION_FIELDS = frozenset(
    {"trace_src_func", "duration", "timestamp", "input__shape", "input__dtype", "func_name", "group", "comm_func"}
)
"""Fields of a sub-operation."""

FIELDS = frozenset(
    {
        "stage_id",
        "batch_id",
        "mg_state",
        "duration",
        "description",
        "group_kind",
        "input__shape",
        "input__dtype",
        "timestamp",
        "sub_operations",
    }
)
"""Fields of an operation that have a property of `TraceOp`."""

LATER_FIELDS = frozenset(
    {
        "cmd_uid",
        "op_semantics",
        "finalize_base_duration_ms",
        "comm_uid",
        "iter",
        "comm_func",
        "buffer_id",
        "bucket_id",
        "bucket_offset",
        "bucket_numel",
        "bucket_numel_unpadded",
        "param_count",
        "trigger_cmd_uid",
        "trigger_op",
        "trigger_batch_id",
        "trigger_timestamp_ms",
        "launch_timestamp_ms",
        "launch_source",
        "timing_domain",
        "metadata_only",
        "status",
        "completion_observed_timestamp_ms",
        "completion_source",
        "wait_cmd_uid",
        "wait_start_timestamp_ms",
        "wait_end_timestamp_ms",
        "logical_stream_role",
        "grad_dtype",
        "data_parallel_world_size",
    }
)
"""Fields that the traces of 2026 add; they are kept in `TraceOp.extra`."""

OVERLAP_CLASSES: dict[str, OverlapClass] = {
    "forward_step": OverlapClass.COMPUTE_BOUND,
    "backward_step": OverlapClass.COMPUTE_BOUND,
    "optimizer_step": OverlapClass.MEMORY_BOUND,
}
"""How computations slow down beside communication: steps of a model are large matrix products for the most part."""

AFTER_DESCRIPTION = FIELDS | {"cmd_uid", "op_semantics", "finalize_base_duration_ms"} | frozenset(ALIASES)
"""Fields that end a description; any other ``word=`` in one belongs to its text."""
