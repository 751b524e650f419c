"""The table of what training frameworks print, ``data/formats/training_log.toml``."""

from msgspec import Struct

from traincast.shipped import shipped_toml


class _Found(Struct, forbid_unknown_fields=True):
    """Where a number stands in a line; the fields are those of the table."""

    after: str
    before: str = ""
    factor: float = 1.0


class Row(Struct, forbid_unknown_fields=True):
    """How one framework prints a step."""

    name: str
    title: str
    mark: str
    head: str
    quantities: dict[str, _Found]
    telling: str | None = None
    first_step: int = 1


class _Run(Struct, forbid_unknown_fields=True):
    sentences: tuple[str, ...]
    gpu_name: str
    mesh: str
    preamble: str
    interruption: str


class _Table(Struct, forbid_unknown_fields=True):
    framework: tuple[Row, ...]
    facts: dict[str, str]
    run: _Run


TABLE = shipped_toml("formats/training_log.toml", _Table)
