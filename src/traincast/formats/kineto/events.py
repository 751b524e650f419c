"""The events of a profiler trace, as far as they are read: which there are, and what of their arguments counts.

Every category of events is a class of its own, so that what is read over costs little.

Source: pytorch/kineto, libkineto/src/output_json.cpp and include/ActivityType.h (keys and categories),
torch/csrc/profiler/util.cpp of PyTorch (arguments of ``record_param_comms``); files of CUDA and ROCm from 2022 on.
"""

import math
from enum import IntEnum
from typing import Any, Union

import msgspec

Loose = int | float | str | list[Any] | None
"""An argument: versions write the same one as a number, as text, or as a list."""


class Work(IntEnum):
    """What the GPU does."""

    KERNEL = 0
    COPY = 1
    SET = 2
    """Memory is set to a value."""


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """Arguments of a communication, and the number that joins host and GPU."""

    external: Loose = msgspec.field(name="External id", default=0)
    collective: Loose = msgspec.field(name="Collective name", default=None)
    in_elements: Loose = msgspec.field(name="In msg nelems", default=None)
    out_elements: Loose = msgspec.field(name="Out msg nelems", default=None)
    dtype: Loose = None
    group_size: Loose = msgspec.field(name="Group size", default=None)
    group_name: Loose = msgspec.field(name="Process Group Name", default=None)
    group_purpose: Loose = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Loose = msgspec.field(name="Process Group Ranks", default=None)
    first_rank: Loose = msgspec.field(name="Global rank start", default=None)
    rank_stride: Loose = msgspec.field(name="Global rank stride", default=None)
    source: Loose = msgspec.field(name="Src Rank", default=None)
    target: Loose = msgspec.field(name="Dst Rank", default=None)
    rank: Loose = msgspec.field(name="Rank", default=None)
    sequence: Loose = msgspec.field(name="Seq", default=None)
    comms_id: Loose = msgspec.field(name="Comms Id", default=None)


class _GpuArguments(Arguments, frozen=True, gc=False):
    device: Loose = -1
    stream: Loose = -1
    correlation: Loose = 0
    size_bytes: Loose = msgspec.field(name="bytes", default=-1)


class HostArguments(Arguments, frozen=True, gc=False):
    """Arguments of an operator of the host."""

    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())


class _CallArguments(msgspec.Struct, frozen=True, gc=False):
    correlation: Loose = 0


class _WaitArguments(msgspec.Struct, frozen=True, gc=False):
    stream: Loose = -1
    correlation: Loose = 0
    for_stream: Loose = msgspec.field(name="wait_on_stream", default=-1)
    recorded_by: Loose = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=0)


class _Event(msgspec.Struct, frozen=True, gc=False):
    """An event with a duration; times are in microseconds."""

    name: str = ""
    ts: float = math.nan
    dur: float = math.nan


class _GpuEvent(_Event, frozen=True, gc=False):
    args: _GpuArguments = _GpuArguments()


class _CallEvent(_Event, frozen=True, gc=False):
    tid: int | str = 0
    args: _CallArguments = _CallArguments()


class _HostEvent(_Event, frozen=True, gc=False):
    tid: int | str = 0
    args: HostArguments = HostArguments()


class _WaitEvent(msgspec.Struct, frozen=True, gc=False):
    args: _WaitArguments = _WaitArguments()


class _Other(msgspec.Struct, frozen=True, gc=False):
    """An event that is read over."""


TABLES = ("gpu", "calls", "host", "waits")
"""What events are sorted into."""
_KINDS: dict[str, tuple[int, type[msgspec.Struct]]] = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"), (0, _GpuEvent)),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime", "Runtime"), (1, _CallEvent)),
    **dict.fromkeys(("cpu_op", "user_annotation", "Operator"), (2, _HostEvent)),
    "cuda_sync": (3, _WaitEvent),
    **dict.fromkeys(("ac2g", "fwdbwd", "python_function", "overhead", "gpu_user_annotation", "Trace"), (-1, _Other)),
}
"""For each category of events: which of the tables takes it, and what is read of it. Those with a capital are of files
before 2022; others are read over, if more slowly than those that are known to be."""
_WORK_NAMED = {"gpu_memcpy": Work.COPY, "Memcpy": Work.COPY, "gpu_memset": Work.SET, "Memset": Work.SET}
_CLASSES = {
    category: msgspec.defstruct(category, [], bases=(base,), tag_field="cat", tag=category, frozen=True, gc=False)
    for category, (_, base) in _KINDS.items()
}
TABLE_OF: dict[type, int] = {kind: _KINDS[category][0] for category, kind in _CLASSES.items()} | {_Other: -1}
"""Table of each class of events, -1 for none."""
WORK_OF: dict[type, Work] = {kind: _WORK_NAMED.get(category, Work.KERNEL) for category, kind in _CLASSES.items()}
_ANY: Any = Union[tuple(_CLASSES.values())]  # noqa: UP007 the union of a list
_ONE, _ALL = msgspec.json.Decoder(_ANY), msgspec.json.Decoder(list[_ANY])


class _Category(msgspec.Struct, frozen=True, gc=False):
    cat: str | None = None


_RAW, _CATEGORIES = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(list[_Category])


def decode_events(text: bytes) -> list[Any]:
    """Decode a list of events, each as what its category says.

    Raises
    ------
    msgspec.DecodeError
        If it is not JSON, or an entry is not an event.
    """
    try:
        return _ALL.decode(text)
    except msgspec.ValidationError:
        # One has no category, or one that is not known, and is read over; or one is damaged.
        pairs = zip(_RAW.decode(text), _CATEGORIES.decode(text), strict=True)
        return [_one(raw, index) if each.cat in _KINDS else _Other() for index, (raw, each) in enumerate(pairs)]


def _one(text: msgspec.Raw, index: int) -> object:
    try:
        return _ONE.decode(text)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$", f"`$[{index}]")) from None
