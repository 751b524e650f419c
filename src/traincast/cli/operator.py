"""``traincast operator``."""

from pathlib import Path
from typing import Any

import click

from traincast import api, report
from traincast.api.estimates import SIZE_ALIASES
from traincast.cli.completion import known, one_of
from traincast.cli.options import in_range, with_options
from traincast.cli.terminal import console, print_json

_ALIASES = {own: (f"--{other.replace('_', '-')}",) for other, own in SIZE_ALIASES.items()}


def _size_options(function: Any) -> Any:  # noqa: ANN401
    """Add a flag for every size of every family."""
    families_of: dict[str, list[str]] = {}
    for family, sizes in api.operator_sizes().items():
        for name in sizes:
            families_of.setdefault(name, []).append(family)
    del families_of["head_dim"]
    options = []
    for name, families in families_of.items():
        flags = (f"--{name.replace('_', '-')}", *_ALIASES.get(name, ()))
        text = f"A size of {', '.join(families)}."
        options.append(click.option(*flags, name, type=in_range(name, 1), metavar="N", help=text))
    return with_options(options, function)


@click.command(name="operator")
@click.argument("family", shell_complete=one_of(*api.operator_sizes()))
@_size_options
@click.option("--dtype", default="bf16", show_default=True, metavar="NAME", help="Element type of the inputs.")
@click.option(
    "--gpu",
    metavar="NAME|FILE",
    shell_complete=known("gpu", "cluster"),
    help="Accelerator, or a cluster file with its [gpu] (default: h100, an assumption).",
)
@click.option(
    "--direction",
    default="forward",
    show_default=True,
    metavar="NAME",
    help="forward, backward; dgrad and wgrad of GEMMs. Sizes are those of the forward pass.",
)
@click.option("--causal", is_flag=True, help="Attention: a query sees no later key.")
@click.option("--window", type=in_range("window"), default=0, metavar="N", help="Attention: keys seen at most.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="What else the family knows, such as kernel=fa2."
)
@click.option(
    "--constants", type=click.Path(path_type=Path), metavar="FILE.csv", help="Profile of traincast calibrate --gpu."
)
@click.option("--json", "as_json", is_flag=True, help="Print the cost as JSON and nothing else.")
def command(
    family: str,
    dtype: str,
    gpu: str | None,
    direction: str,
    causal: bool,
    window: int,
    options: tuple[str, ...],
    constants: Path | None,
    as_json: bool,
    **sizes: int | None,
) -> None:
    """Print the cost of one operator on a GPU: time, what binds it, and why.

    FAMILY is gemm, grouped-gemm, attention, unfused-attention, norm, softmax, elementwise,
    activation, rotary, accumulate, cast, copy, embedding, cross-entropy, route, permute,
    state-space, delta-rule or optimizer. Example: traincast operator gemm --m 8192 --n 8192 --k 8192 --gpu h100
    """
    given = {name: size for name, size in sizes.items() if size is not None}
    if "qk_dim" in given and "head_dim" in api.operator_sizes().get(family.replace("-", "_"), ()):
        given["head_dim"] = given.pop("qk_dim")
    cost = api.operator(
        family,
        gpu,
        None if constants is None else str(constants),
        dtype=dtype,
        direction=direction,
        causal=causal,
        window=window,
        options=dict(map(_pair, options)),
        **given,
    )
    if as_json:
        print_json(report.operator_to_dict(cost))
        return
    report.print_operator(console(), cost)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r} is not a name and value, such as kernel=fa2", param_hint="--option")
    return name, value
