"""Fit a cluster's constants to measured collectives, and say how far off they were and are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from traincast.calibrate.collectives import price_measured, read_collectives, size_bands
from traincast.calibrate.contract import FloatArray
from traincast.calibrate.fit import fit_links
from traincast.calibrate.measurements import CollectiveMeasurements, Skipped
from traincast.calibrate.profile import cluster_toml, measured_tables
from traincast.calibrate.statistics import Statistics, statistics
from traincast.errors import CalibrationError
from traincast.hardware.cluster import Cluster, Measured
from traincast.progress import announce

_ANNOUNCED_ROWS = 5_000
_ROWS_PER_S = 1400
"""From so many rows a fit is announced; so many are fitted in a second of one core (13,900 rows: 10 to 14 s)."""

_WORSE = 0.01
"""How much larger the median error of a band must be, as a fraction, to be told."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far off the prices of some rows are.

    Parameters
    ----------
    name : str
        ``"all"``, or a band of sizes.
    before, after : Statistics
        With the constants of the base and with the fitted ones, over the same rows.
    """

    name: str
    before: Statistics
    after: Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A cluster fitted to measurements.

    Parameters
    ----------
    files : tuple of str
        What was read.
    base : Cluster
        What the fit started from.
    cluster : Cluster
        The base with the fitted constants, each with its source.
    fitted : tuple of str
        Numbers that the fit changed.
    residuals : tuple of Residuals
        Of all rows, then by band of sizes; in sample.
    skipped : tuple of Skipped
        Rows that were left out, and why.
    notes : tuple of str
        What the measurements cannot tell apart, and what was taken instead.
    """

    files: tuple[str, ...]
    base: Cluster
    cluster: Cluster
    fitted: tuple[str, ...]
    residuals: tuple[Residuals, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()

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
        Whether the profile keeps the measured times as well: they then are the price of just
        the operations and groups that were measured, and the formula that of all others.

    Returns
    -------
    Calibration

    Raises
    ------
    FormatError
        If a file cannot be read.
    CalibrationError
        If no row is left, or the rows are of several GPUs, or do not determine the constants.
    """
    read = read_collectives([Path(path) for path in paths])
    if not len(read.measurements):
        raise CalibrationError(
            f"no row can be used: {read.skipped[0].reason} ({read.skipped[0].id})", rows=0, needed_rows=1
        )
    gpus = sorted({gpu for gpu in read.measurements.gpu if gpu is not None})
    if len(gpus) > 1:
        raise CalibrationError(f"the rows are of several GPUs ({', '.join(gpus)}); calibrate each from its own file")
    measured, base = read.measurements.on(base), replace(base, measured=None)
    files = tuple(str(path) for path in paths)
    if len(measured) > _ANNOUNCED_ROWS:
        announce(f"fitting constants to {len(measured):,} rows: about {len(measured) / _ROWS_PER_S:.0f} s")
    fit = fit_links(measured, base, no_band_worse=True)
    cluster = fit.cluster
    changed = tuple(_changed(base, cluster))
    source = f"fitted by traincast calibrate to {', '.join(files)}"
    residuals = tuple(_residuals(measured, base, cluster))
    kept = measured_tables(measured, f"medians of {', '.join(files)}") if table else ()
    profile = _with_sources(cluster, base, changed, source)
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
    if not is_dataclass(base) or not is_dataclass(fitted):
        return
    for field in fields(fitted):
        old, new = getattr(base, field.name), getattr(fitted, field.name)
        if is_dataclass(new):
            yield from _changed(old, new, f"{prefix}{field.name}.")
        elif old != new and field.name not in ("name", "description", "sources"):
            yield f"{prefix}{field.name}"


def _with_sources(cluster: Cluster, base: Cluster, changed: Sequence[str], source: str) -> Cluster:
    """Return the fitted cluster with a source for each number that the fit changed."""
    sources = {**dict(base.sources), **dict.fromkeys(changed, source)}
    return replace(cluster, sources=tuple(sources.items()))


def _residuals(measured: CollectiveMeasurements, base: Cluster, cluster: Cluster) -> Iterator[Residuals]:
    before, after = _times(measured, base), _times(measured, cluster)
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


def _times(measured: CollectiveMeasurements, cluster: Cluster) -> FloatArray:
    return np.array([price.time_s for price in price_measured(measured, cluster)], np.float64)


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:.1f} %"
