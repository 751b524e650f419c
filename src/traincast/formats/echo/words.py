"""The words of Echo's rank traces (``data/formats/echo.toml``), and what they mean here."""

from importlib import resources

import msgspec

from traincast.workload.words import Group, Operation, Phase


class _Words(msgspec.Struct, forbid_unknown_fields=True):
    fields: list[str]
    later_fields: list[str]
    field_names: dict[str, list[str]]
    groups: dict[str, list[str]]
    communications: dict[str, list[str]]
    v_forms: dict[str, list[str]]
    dtype_bytes: dict[str, int]
    collectives: dict[str, tuple[str, str]]
    other_names: dict[str, list[str]]


def _by_name(names: dict[str, list[str]]) -> dict[str, str]:
    return {name: meant for meant, alike in names.items() for name in alike}


_SHIPPED = resources.files("traincast") / "data" / "formats" / "echo.toml"
_WORDS = msgspec.toml.decode(_SHIPPED.read_bytes(), type=_Words)

FIELDS = frozenset(_WORDS.fields)
"""Fields of an operation that have a property of `traincast.formats.echo.lines.TraceOp`."""

LATER_FIELDS = frozenset(_WORDS.later_fields)
"""Fields that the traces of 2026 add."""

ALIASES = _by_name(_WORDS.field_names)
"""Other spellings of a field's name (older logs) and the usual one."""

GROUPS = {name: Group[group] for name, group in _by_name(_WORDS.groups).items()}
"""Groups by the tracer's name; ``ep`` is the embedding group, ``exp`` the expert group."""

V_FORMS = {name: Operation[operation] for name, operation in _by_name(_WORDS.v_forms).items()}
"""Forms of communications in which every rank has a piece of any size."""

COMMUNICATIONS = {name: Operation[operation] for name, operation in _by_name(_WORDS.communications).items()} | V_FORMS
"""Communications by the tracer's name, in both spellings."""

DTYPE_BYTES = _WORDS.dtype_bytes
"""Bytes of one element, by PyTorch's name without ``torch.``."""

COLLECTIVES = {name: (Group[group], Operation[what]) for name, (group, what) in _WORDS.collectives.items()}
"""Operations that are one collective as a whole."""

OPERATION_NAMES = _by_name(_WORDS.other_names)
"""Operations that go by another name here; every other name is kept."""

MESSAGES = frozenset({"send_forward", "recv_forward", "send_backward", "recv_backward"})
"""Operations that are one end of a message between pipeline stages."""

PHASES = {
    "get_batch": Phase.FORWARD,
    "forward_step": Phase.FORWARD,
    "loss_func": Phase.FORWARD,
    "backward_step": Phase.BACKWARD,
    "optimizer_step": Phase.STEP,
}
"""Operations that compute, with the collectives inside them as sub-operations: the part of the step they are of."""
