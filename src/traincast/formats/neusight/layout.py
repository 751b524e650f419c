"""Decide the layout of a NeuSight file: what the user says, then what its communications show."""

from traincast.diagnostics import Notebook
from traincast.errors import ConfigError
from traincast.formats.layout import asked_dp, warn_single_microbatch
from traincast.formats.neusight.rows import NeusightFile
from traincast.spec.options import LayoutOptions
from traincast.spec.parallel import Parallel
from traincast.units import counted
from traincast.workload.words import Group

NEUSIGHT_GPUS = 4
"""GPUs that NeuSight's own formula for communication is fixed at, whatever the layout."""


def decide_layout(file: NeusightFile, options: LayoutOptions, notes: Notebook) -> Parallel:
    """Work out degrees and microbatches.

    Parameters
    ----------
    file : NeusightFile
        What the file says.
    options : LayoutOptions
        What the user says.
    notes : Notebook
        Receives every assumption and warning.

    Returns
    -------
    Parallel
        As many stages as the file's SENDRECV rows separate.

    Raises
    ------
    ConfigError
        If the user wants other stages than the file has.
    InfeasibleError
        If the GPUs do not divide into the degrees.
    """
    pp = 1 + sum(row.sends for row in file.rows)
    if options.pp not in (None, pp):
        raise ConfigError(
            f"is {options.pp}; {file.path} describes {counted(pp, 'stage')}, and SENDRECV rows separate stages", "pp"
        )
    if options.vpp not in (None, 1):
        raise ConfigError(f"is {options.vpp}; the stages of a NeuSight file have no virtual stages", "vpp")
    if pp > 1 and options.microbatches is None:
        text = "the file says no number of microbatches; taken as 1, as NeuSight does (give --microbatches)"
        notes.assume("microbatches-absent", text, None)
    tp, dp = _degrees(file, options, pp, notes)
    _warn_not_rescaled(file, options, notes)
    parallel = Parallel(tp=tp, dp=dp, pp=pp, microbatches=options.microbatches or 1)
    warn_single_microbatch(notes, pp, pp, parallel.microbatches, None)
    return parallel


def _warn_not_rescaled(file: NeusightFile, options: LayoutOptions, notes: Notebook) -> None:
    """Warn where the user says a tp: nothing in the file says which one its times are of."""
    communicates = Group.TP in _groups(file)
    if options.tp is None or (options.tp == 1 and not communicates):
        return
    text = f"the file says no tp; its compute times and elements are kept as they are for tp {options.tp}"
    notes.warn("tp-not-rescaled", text if communicates else f"{text}, and no row communicates over tp", None)


def _groups(file: NeusightFile) -> set[Group]:
    return {cell.group for row in file.rows for cell in row.cells}


def _degrees(file: NeusightFile, options: LayoutOptions, pp: int, notes: Notebook) -> tuple[int, int]:
    """Return tp and dp: what the user leaves open follows from the GPUs, else from NeuSight's 4."""
    groups = _groups(file)
    tp = options.tp
    if tp is None:
        only_tp = Group.TP in groups and Group.DP not in groups
        if only_tp and options.gpus is not None:
            tp = max(1, options.gpus // (pp * (options.dp or 1)))
            text = f"the file communicates over tp only, so {counted(options.gpus, 'GPU makes', 'GPUs make')} tp {tp}"
            notes.assume("tp-from-gpus", text, None)
        else:
            tp = _default(Group.TP, groups, notes)
    dp = asked_dp(options, {"tp": tp, "pp": pp}, file.path)
    return tp, _default(Group.DP, groups, notes) if dp is None else dp


def _default(group: Group, groups: set[Group], notes: Notebook) -> int:
    if group not in groups:
        return 1
    name = group.name.lower()
    notes.assume(
        f"{name}-absent",
        f"the file communicates over {name} and says no number of ranks; taken as {NEUSIGHT_GPUS}, which NeuSight's "
        f"exporter fixes (give --{name} or --gpus)",
        None,
    )
    return NEUSIGHT_GPUS
