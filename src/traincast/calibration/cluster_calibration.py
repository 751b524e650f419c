"""Fit a cluster to measured collectives, say how far off it was and is, and write it as a TOML file for ``--cluster``.

With it the measured times themselves, as tables, where asked for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.calibration.collectives import CollectiveMeasurements, estimate_measured, read_collectives, size_bands
from traincast.calibration.fit_links import fit_links
from traincast.calibration.kind import FloatArray
from traincast.calibration.tables import Skipped
from traincast.calibration.validate import Statistics, statistics
from traincast.errors import CalibrationError
from traincast.hardware.cluster import Cluster, Measured, MeasuredTable
from traincast.hardware.clusters import cluster_table
from traincast.progress import announce
from traincast.units import counted, format_share

_ANNOUNCED_ROWS = 5_000
_ROWS_PER_S = 1400
"""From so many rows a fit is announced; so many are fitted in a second of one core (13,900 rows: 10 to 14 s)."""

_WORSE = 0.01
"""How much larger the median error of a band must be, as a fraction, to be told."""

_LEAST_SIZES = 2
"""With fewer sizes there is no line between them."""


class Residuals(Struct, frozen=True):
    """How far off the estimates of all rows or of a band of sizes are, by the constants of the base and the fitted."""

    name: str
    before: Statistics
    after: Statistics


class Calibration(Struct, frozen=True, kw_only=True):
    """A cluster fitted to measurements."""

    files: tuple[str, ...]
    base: Cluster
    """What the fit started from."""
    cluster: Cluster
    """The base with the fitted constants, each with its source."""
    fitted: tuple[str, ...]
    """Numbers that the fit changed."""
    residuals: tuple[Residuals, ...]
    """Of all rows, then by band of sizes; in sample."""
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()
    """What the measurements cannot tell apart, and what was taken instead."""

    def __repr__(self) -> str:
        """Say what was fitted to what, in a line."""
        return f"<Calibration: {self.base.name} fitted to {counted(len(self.files), 'file')}>"

    def profile(self) -> str:
        """Return the fitted cluster as a TOML file for ``--cluster``, with its residuals as comments."""
        return cluster_toml(self.cluster, [*self._comments()])

    def _comments(self) -> Iterator[str]:
        yield f"{self.base.name} fitted by traincast calibrate to {', '.join(self.files)}."
        yield "Absolute error of the time, in sample (of the base in brackets):"
        for each in self.residuals:
            after, before = each.after, each.before
            yield (
                f"  {each.name:10} {after.evaluated:6} rows   median {_percent(after.median_abs_error)} "
                f"({_percent(before.median_abs_error)})   p90 {_percent(after.p90_abs_error)} "
                f"({_percent(before.p90_abs_error)})   bias {_percent(after.bias)}"
            )
        yield from (f"Note: {note}." for note in self.notes)
        if self.cluster.measured is not None:
            yield "That is the formula. The groups in the tables at the end take their times from there instead."


def calibrate(paths: Sequence[str | PathLike[str]], base: Cluster, *, table: bool = False) -> Calibration:
    """Fit the constants of a cluster to measured collectives.

    Parameters
    ----------
    paths : sequence of paths
        Logs of nccl-tests and CSV files, all of one cluster.
    base : Cluster
        What to start from; what the measurements do not show stays as it is there. Its
        measured tables are dropped.
    table : bool, default False
        Whether the profile keeps the measured times as well: they then are the estimate of just
        the operations and groups that were measured, and the formula that of all others.

    Raises
    ------
    FormatError
        If a file cannot be read.
    CalibrationError
        If no row is left, or the rows are of several GPUs, or do not determine the constants.
    """
    read = read_collectives(list(map(Path, paths)))
    if not len(read.measurements):
        raise CalibrationError(
            f"no row can be used: {read.skipped[0].reason} ({read.skipped[0].id})", rows=0, needed_rows=1
        )
    gpus = sorted({gpu for gpu in read.measurements.gpu if gpu is not None})
    if len(gpus) > 1:
        raise CalibrationError(f"the rows are of several GPUs ({', '.join(gpus)}); calibrate each from its own file")
    measured, base = read.measurements.on(base), replace(base, measured=None)
    files = tuple(map(str, paths))
    if len(measured) > _ANNOUNCED_ROWS:
        announce(f"fitting constants to {len(measured):,} rows: about {len(measured) / _ROWS_PER_S:.0f} s")
    fit = fit_links(measured, base, no_band_worse=True)
    cluster = fit.cluster
    changed = tuple(_changed(base, cluster))
    sources = dict(base.sources) | dict.fromkeys(changed, f"fitted by traincast calibrate to {', '.join(files)}")
    residuals = tuple(_residuals(measured, base, cluster))
    kept = measured_tables(measured, f"medians of {', '.join(files)}") if table else ()
    profile = replace(cluster, sources=tuple(sources.items()))
    if kept:
        profile = replace(profile, measured=Measured(tables=kept, intra=cluster.intra, inter=cluster.inter))
    return Calibration(
        files=files,
        base=base,
        cluster=profile,
        fitted=changed,
        residuals=residuals,
        skipped=read.skipped,
        notes=(*fit.notes, *_worse_bands(residuals)),
    )


def _changed(base: object, fitted: object, prefix: str = "") -> Iterator[str]:
    """Yield the numbers in which two clusters differ, as ``inter.bandwidth_bytes_per_s``."""
    if not isinstance(base, Struct) or not isinstance(fitted, Struct):
        return
    for name in fitted.__struct_fields__:
        old, new = getattr(base, name), getattr(fitted, name)
        if isinstance(new, Struct):
            yield from _changed(old, new, f"{prefix}{name}.")
        elif old != new and name not in ("name", "description", "sources"):
            yield f"{prefix}{name}"


def _residuals(measured: CollectiveMeasurements, base: Cluster, cluster: Cluster) -> Iterator[Residuals]:
    before, after = (
        np.array([estimate.time_s for estimate in estimate_measured(measured, each)], np.float64)
        for each in (base, cluster)
    )
    bands = size_bands(measured.size_bytes)
    masks = {"all": np.ones(len(measured), dtype=bool)}
    masks |= {name: bands.index == position for position, name in enumerate(bands.names)}
    for name, rows in masks.items():
        if rows.any():
            times = measured.time_s[rows]
            yield Residuals(name, statistics(before[rows], times), statistics(after[rows], times))


def _worse_bands(residuals: Sequence[Residuals]) -> Iterator[str]:
    """Say which bands of sizes the fit made worse."""
    for each in residuals[1:]:
        before, after = each.before.median_abs_error, each.after.median_abs_error
        if before is not None and after is not None and after > before + _WORSE:
            yield (
                f"rows of {each.name} are {_percent(after)} off, {_percent(before)} before: no constants have all of "
                "these sizes right (--table keeps the measured times)"
            )


def _percent(error: float | None) -> str:
    return "-" if error is None else format_share(error)


def cluster_toml(cluster: Cluster, comments: Sequence[str] = ()) -> str:
    """Return a cluster as TOML that builds on no other file, its sources with the numbers and comments first.

    `load_cluster` of it gives an equal cluster, but for its name.
    """
    # A line break in a file's name must not end a comment.
    lines = ["".join(char if char.isprintable() else " " for char in f"# {comment}").rstrip() for comment in comments]
    sources, table = dict(cluster.sources), cluster_table(cluster)
    del table["name"]
    if cluster.fabric is not None and cluster.fabric.file:
        # It must not depend on where the profile is written.
        table["fabric"]["file"] = str(Path(cluster.fabric.file).resolve())
    lists = {
        key: value for key, value in table.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    sections = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines += _lines({key: value for key, value in table.items() if key not in lists | sections}, "", sources)
    for name, section in sections.items():
        lines += ["", f"[{name}]", *_lines(section, f"{name}.", sources)]
    for name, entries in lists.items():
        for each in entries:
            lines += ["", f"[[{name}]]", *_lines(each, "", {})]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any], prefix: str, sources: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        source = sources.get(f"{prefix}{name}")
        said = _toml(value) if source is None else f"{{ value = {_toml(value)}, source = {_toml(source)} }}"
        yield f"{name} = {said}"


def _toml(value: object) -> str:
    # JSON of texts, numbers and lists is TOML, but for the one control character that it lets through.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def measured_tables(measured: CollectiveMeasurements, source: str) -> tuple[MeasuredTable, ...]:
    """Return a table per operation and group, sorted: the median time of each size, never falling with it.

    The numbers of nodes are known; groups with one size only are left out. `source` says where the times come from.
    """
    keys = measured.groups
    tables = []
    for key in sorted(set(keys)):
        rows = np.array([each == key for each in keys])
        sizes, group = np.unique(measured.size_bytes[rows], return_inverse=True)
        if len(sizes) < _LEAST_SIZES:
            continue
        times = [np.median(measured.time_s[rows][group == index]) for index in range(len(sizes))]
        rising = np.exp(never_falling(np.log(times)))
        tables.append(
            MeasuredTable(
                op=key[0],
                ranks=key[1],
                nodes=key[2],
                size_bytes=tuple(sizes.tolist()),
                # Four digits are far below the noise, and rounding keeps the order.
                time_s=tuple(float(f"{time:.4g}") for time in rising),
                source=source,
            )
        )
    return tuple(tables)


def never_falling(values: Sequence[float] | FloatArray) -> FloatArray:
    """Return the sequence that never falls and is nearest to some values, in least squares.

    Neighbours that fall are replaced by their mean until none do: pool adjacent violators, Ayer, Brunk, Ewing, Reid and
    Silverman, 1955.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, many), (two, more) = pools[-2:]
            pools[-2:] = [((one * many + two * more) / (many + more), many + more)]
    return np.repeat([value for value, _ in pools], [count for _, count in pools])
