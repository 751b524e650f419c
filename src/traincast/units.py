"""Quantities: which values each may have, and how people write them (``400Gb/s``, ``80GiB``, ``2.5ms``).

Inside traincast every number is SI (seconds, bytes, bytes per second, FLOP). Text with units is read and written
here and nowhere else. What is out of range is refused where it is read: a quantity has a kind (`RANGES`), and the
name of a field says its kind (`range_of`), a few by themselves, the others by the unit that they end with. Ranges
are wide enough for any machine or model of the next ten years, and narrow enough that sums and products of values
in range stay finite in double precision; what can exceed 64-bit integers as a product is checked where it is made.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from traincast.errors import ConfigError

GIGA = 1e9

LARGEST_WHOLE = 2**53 - 1
"""Largest whole number that JSON and double precision keep exactly (IEEE 754-2019, binary64)."""

SMALLEST = 1e-30
"""Least magnitude of a number that is not zero; below come those that lose digits (1e-308)."""

_LONGEST_SHOWN = 60
_LONGEST_NUMBER = 40
_WHOLE = re.compile(r"[-+]?[0-9]+(?:\.0*)?")


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a kind of quantity may have."""

    kind: str
    """Its name in `RANGES`."""
    lowest: float
    highest: float
    unit: str
    """What is counted, or the unit."""
    whole: bool
    of: str
    """Examples of what has it."""

    def __str__(self) -> str:
        """Return it for a message: ``a whole number from 1 to 16,384``."""
        return f"a {'whole number' if self.whole else 'number'} from {self.span}"

    @property
    def span(self) -> str:
        """Lowest and highest value with the unit."""
        return f"{_plain(self.lowest)} to {_plain(self.highest)}{f' {self.unit}' if self.unit else ''}"

    def checked(self, raw: object, field: str | None = None, *, least: float | None = None) -> float:
        """Return a number that is in range, an int where the range has only whole numbers (``8.0`` is 8).

        Parameters
        ----------
        raw : object
            What was read; texts are no numbers here, truth values neither.
        field : str, optional
            Field path or flag, for the message.
        least : float, optional
            A lowest value of this field alone.

        Raises
        ------
        ConfigError
            If it is no number, not finite, not whole where it must be, or out of range.
        """
        lowest = self.lowest if least is None else least
        # A whole number beyond the doubles compares exactly, and a NaN is in no range.
        if (
            isinstance(raw, bool)
            or not isinstance(raw, int | float)
            or not lowest <= raw <= self.highest
            or 0 < abs(raw) < SMALLEST
            or (self.whole and int(raw) != raw)
        ):
            tiny = isinstance(raw, float) and 0 < abs(raw) < SMALLEST
            also = f", and not so close to 0 as {SMALLEST:g}" if tiny else ""
            raise ConfigError(f"is {quoted(raw)}; it must be {replace(self, lowest=lowest)}{also}", field)
        return int(raw) if self.whole else float(raw)

    def parsed(self, text: str) -> float:
        """Return the number in range that a text is, with blanks around it or not.

        Raises
        ------
        ConfigError
            If it is no plain decimal number, or out of range.
        """
        bare = text.strip()
        return self.checked(plain_number(bare) if is_number(bare) else bare)


def is_number(text: str) -> bool:
    """Say whether a text is a decimal number of a length that numbers have; a NaN is none."""
    # float() and int() also take underscores, the digits of other scripts, and any length.
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        return False
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def plain_number(text: str) -> int | float:
    """Return the number that a text is (`is_number`); whole ones stay exact."""
    return int(text.strip().partition(".")[0]) if _WHOLE.fullmatch(text.strip()) else float(text)


def count_of(text: str) -> int | None:
    """Return the whole number of at least 1 that a text is; None where it is none."""
    return int(text) if is_number(text) and text.isdecimal() and int(text) >= 1 else None


def quoted(raw: object) -> str:
    """Return a value as a message shows it: in quotes where it is a text, cut where it is long."""
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) > 10**_LONGEST_NUMBER:
        # Python refuses to print numbers of thousands of digits.
        return f"a whole number of {raw.bit_length()} bits"
    if isinstance(raw, str) and len(raw) > _LONGEST_SHOWN:
        return f"{raw[:_LONGEST_SHOWN]!r}..."
    try:
        text = repr(raw)
    except (ValueError, RecursionError):
        return f"a {type(raw).__name__} that is too long to show"
    return text if len(text) <= 2 * _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def brief(text: str) -> str:
    """Return a text as a message shows it without quotes: cut where it is long."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _plain(value: float) -> str:
    if value == LARGEST_WHOLE:
        return "2^53 - 1"
    if not float(value).is_integer() or abs(value) > 1e13:
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.0f}"


RANGES = {
    row[0]: Range(*row)
    for row in (
        ("degree", 1, 2**31 - 1, "", True, "GPUs, nodes, parallel degrees, microbatches, batches, counts of a file"),
        ("rank", 0, 2**31 - 1, "", True, "a rank, a node"),
        ("node size", 1, 2**16, "GPUs", True, "GPUs of a node"),
        ("parts", 1, 2**20, "", True, "nodes, switches, planes of a fabric, GPUs of a torus, parts of a GPU"),
        ("queue pairs", 1, 2**10, "", True, "queue pairs of a connection"),
        ("layers", 0, 2**14, "layers", True, "layers, and of which kind they are"),
        ("width", 0, 2**24, "", True, "hidden sizes, heads, head sizes, experts"),
        ("vocabulary", 1, 2**28, "entries", True, "entries of a vocabulary, what it is padded to"),
        ("sequence", 0, 2**30, "tokens", True, "sequences, positions, attention windows"),
        ("extent", 1, 2**40, "", True, "sizes of a single operator"),
        ("count", 0, LARGEST_WHOLE, "", True, "parameters, elements, and every other count"),
        ("bytes", 0, LARGEST_WHOLE, "bytes", True, "messages, memory"),
        ("element bytes", 1, 16, "bytes", True, "bytes of an element"),
        ("rate", 1, 1e18, "bytes/s", False, "links, NICs, memory, bus bandwidths"),
        ("FLOP rate", 1, 1e24, "FLOP/s", False, "peaks"),
        ("power", 1, 1e6, "W", False, "power limits"),
        ("latency", 0, 1e3, "s", False, "latencies, host times"),
        ("time", 0, 1e9, "s", False, "durations of a file, measured times"),
        ("step time", 0, 1e18, "s", False, "times of a result, which are sums"),
        ("factor", 1e-6, 1e6, "", False, "slowdowns, imbalance, oversubscription, capacity"),
        ("share", 0, 1, "", False, "shares"),
        ("added share", 0, 1e3, "", False, "what overlap adds to a time"),
        ("load", 0, 1e18, "", False, "relative loads"),
        ("exponent", 0, 16, "", False, "exponents of a formula"),
        ("seed", 0, LARGEST_WHOLE, "", True, "seeds of a hash"),
        ("seeds", 1, 1000, "", True, "simulations of one step with further seeds"),
        ("year", 1900, 2200, "", True, "years"),
        ("ZeRO stage", 0, 3, "", True, "stage of ZeRO"),
        ("figure", -1e18, 1e18, "", False, "any other number of a result, and measured rates"),
    )
}
"""Kind to its range."""


_KIND_OF_NAME: dict[str, tuple[str, ...]] = {
    "degree": (
        *("gpus", "nodes", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "shard", "microbatches", "ranks"),
        *("micro_batch", "global_batch", "batch", "num_gpus", "world_size"),
    ),
    "rank": ("rank",),
    "node size": ("gpus_per_node", "gpus_used_per_node", "domain"),
    "parts": ("nodes_per_leaf", "leaves_per_pod", "spines", "rails", "planes", "dims", "sms"),
    "queue pairs": ("queue_pairs",),
    "layers": (
        *("layers", "first_stage_layers", "last_stage_layers", "stage_layers", "recompute_layers"),
        *("layers_per_chunk", "window_layers", "window_period", "first_dense_layers", "period", "mtp_layers"),
        "norms_per_layer",
    ),
    "width": (
        *("hidden", "ffn_hidden", "heads", "kv_heads", "head_dim", "kv_rank", "q_rank", "rope_head_dim"),
        *("nope_head_dim", "v_head_dim", "experts", "topk", "group_topk", "shared_ffn_hidden", "moe_ffn", "lora_rank"),
        *("qk_dim", "v_dim"),
    ),
    "vocabulary": ("vocab", "vocabulary", "vocab_multiple"),
    "sequence": ("seq_length", "seq_len", "learned_positions", "max_positions", "window"),
    "extent": ("m", "n", "k", "rows", "width", "groups", "tokens", "elements", "queries", "keys", "parameters"),
    "count": ("other_params",),
    "element bytes": ("grad_reduce_bytes", "param_gather_bytes"),
    "factor": ("expert_imbalance", "compute_slowdown", "compute_factor", "capacity_factor", "oversubscription"),
    "share": ("unhidden_tp", "unhidden_cp", "unhidden_ep", "unhidden_fsdp", "selective_share"),
    "added share": ("overlap_slowdown",),
    "load": ("expert_loads",),
    "exponent": ("crowding",),
    "seed": ("seed",),
    "seeds": ("network_seeds",),
    "year": ("year",),
    "ZeRO stage": ("zero",),
    "power": ("tdp_w",),
    "latency": ("host_layer_s", "host_expert_s", "step_fixed_s", "p2p_handover_s"),
}
_BY_NAME = {name: RANGES[kind] for kind, names in _KIND_OF_NAME.items() for name in names}
_BY_ENDING = (
    ("_flops_per_s", RANGES["FLOP rate"]),
    ("_bytes_per_s", RANGES["rate"]),
    ("_bytes", RANGES["bytes"]),
    ("_latency_s", RANGES["latency"]),
    ("_s", RANGES["time"]),
)


def range_of(name: str) -> Range | None:
    """Return the range of a field by its name, without the path before it; None where the name says no quantity."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((found for ending, found in _BY_ENDING if name.endswith(ending)), None)


def checked_field(name: str, raw: object, path: str | None = None, *, least: float | None = None) -> float:
    """Return a number in the range of the field of that name (`Range.checked`); of no quantity it must be a `figure`.

    Raises
    ------
    ConfigError
        If it is none, with the path of the field.
    """
    return (range_of(name) or RANGES["figure"]).checked(raw, path, least=least)


def check_given(owner: object, names: Iterable[str], prefix: str = "", *, least: float | None = None) -> None:
    """Refuse fields of an object that are no number, or one out of range; None is left alone.

    Raises
    ------
    ConfigError
        With the path of the field: `prefix` and its name.
    """
    for name in names:
        value = getattr(owner, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None:
                checked_field(name, each, f"{prefix}{name}", least=least)


_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIX = {**_DECIMAL, **_BINARY}
_SHOWN = {prefix: _DECIMAL[prefix] for prefix in "kMGT"}
"""Decimal prefixes that are written."""
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_TOKENS = re.compile(r"^\s*([0-9][0-9_,]*\.?[0-9]*)\s*([kKmM]?)\s*$")
_TOKEN_PREFIX = {"": 1, "k": 2**10, "m": 2**20}
_QUANTITY = re.compile(r"^\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is None or not is_number(match[1]):
        raise ConfigError(f"{quoted(text)} is not a {what}; write it like {example}")
    return float(match[1]), match[2]


def _in_range(value: float, kind: Range, text: str) -> float:
    """Return a value that is in range; the message has the text that it was written as."""
    if not kind.lowest <= value <= kind.highest:
        raise ConfigError(f"{quoted(text)} is out of range; it must be {kind}")
    return value


def parse_size(text: str) -> int:
    """Read a number of bytes: ``1GiB``, ``512kB``, ``20971520``; a bare number is bytes.

    Raises
    ------
    ConfigError
        If the text is no size, a negative one, or out of range.
    """
    value, unit = _split(text, "size", "64MiB")
    prefix = unit.removesuffix("B")
    if prefix not in _PREFIX or value < 0:
        raise ConfigError(f"{quoted(text)} is not a size; write it like 64MiB or 512kB")
    return round(_in_range(value * _PREFIX[prefix], RANGES["bytes"], text))


def parse_rate(text: str) -> float:
    """Read a data rate in bytes per second: ``400Gb/s``, ``300GB/s``, ``400Gbps``; ``b`` is bits and ``B`` bytes.

    Raises
    ------
    ConfigError
        If the text is no rate, not a positive one, or out of range.
    """
    value, unit = _split(text, "rate", "300GB/s")
    for ending, bytes_per_unit in (("b/s", 0.125), ("bps", 0.125), ("B/s", 1.0), ("Bps", 1.0)):
        prefix = unit.removesuffix(ending)
        if prefix != unit and prefix in _PREFIX and value > 0:
            return _in_range(value * _PREFIX[prefix] * bytes_per_unit, RANGES["rate"], text)
    raise ConfigError(f"{quoted(text)} is not a rate; write it like 300GB/s or 400Gb/s")


def parse_tokens(text: str) -> int:
    """Read a number of tokens, such as ``8192``, ``8k``, ``128K`` or ``1M``; k is 1,024 and M 1,048,576.

    Raises
    ------
    ConfigError
        If the text is no whole number of tokens, or out of range.

    Examples
    --------
    >>> parse_tokens("128k")
    131072
    """
    match = _TOKENS.match(text)
    tokens = float(match[1].replace("_", "").replace(",", "")) * _TOKEN_PREFIX[match[2].lower()] if match else 0.0
    if not 1 <= tokens < math.inf or tokens != int(tokens):
        raise ConfigError(f"{quoted(text)} is not a number of tokens; write it like 8192, 8k (8,192) or 1M (1,048,576)")
    return int(_in_range(tokens, RANGES["sequence"], text))


def parse_time(text: str) -> float:
    """Read a duration in seconds: ``2.5ms``, ``10us``, ``3``; a bare number is seconds.

    Raises
    ------
    ConfigError
        If the text is no duration, a negative one, or out of range.
    """
    value, unit = _split(text, "duration", "2.5ms")
    if (unit or "s") not in _SECONDS or value < 0:
        raise ConfigError(f"{quoted(text)} is not a duration; write it like 2.5ms")
    return _in_range(value * _SECONDS[unit or "s"], RANGES["time"], text)


def format_time(time_s: float) -> str:
    """Write a duration for people: ``14.3 s``, ``326 us``."""
    if time_s == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(time_s) >= scale:
            return f"{_digits(time_s / scale)} {unit}"
    return f"{_digits(time_s / 1e-9)} ns"


def format_size(size_bytes: float) -> str:
    """Write a number of bytes for people, in binary units: ``128 MiB``."""
    return _scaled(size_bytes, _BINARY, "B", f"{size_bytes:.0f}")


def format_decimal_size(size_bytes: float) -> str:
    """Write a number of bytes for people in decimal units, as datasheets do: ``80 GB``."""
    return _scaled(size_bytes, _SHOWN, "B", f"{size_bytes:.0f}")


def format_rate(rate_bytes_per_s: float) -> str:
    """Write a data rate for people: ``362 GB/s``."""
    return _scaled(rate_bytes_per_s, _SHOWN, "B/s", _digits(rate_bytes_per_s))


def _scaled(value: float, prefixes: Mapping[str, float], unit: str, small: str) -> str:
    """Write a value with the largest prefix that it reaches; with none as `small`."""
    for prefix, scale in sorted(prefixes.items(), key=lambda each: -each[1]):
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {prefix}{unit}"
    return f"{small} {unit}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Write a number of things for people: ``1 layer``, ``1024 layers``; `many` is `one` with an s by default."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def format_share(share: float, digits: int = 1) -> str:
    """Write a fraction for people as a percentage: ``13.8 %``."""
    return f"{100 * share:.{digits}f} %"


def _digits(value: float) -> str:
    """Four significant digits, without an exponent and without trailing zeros after a point."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:.{max(0, 3 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
