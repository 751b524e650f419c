"""What SimAI reads from the first line, and what of it stops SimAI."""

from traincast.diagnostics import Remarks
from traincast.errors import ConfigError
from traincast.estimate.simai.price import SimaiLayout
from traincast.formats.aicb.rows import AicbFile, Column
from traincast.formats.aicb.structure import structure
from traincast.job.options import LayoutOptions
from traincast.units import counted

SIMAI_OPTIONS = frozenset({"gpus", "tp", "ep", "pp", "vpp", "microbatches", "pp_message_bytes"})
"""Fields of `LayoutOptions` that SimAI has a word for."""

RAISES_SMALL = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
"""Policy that raises the forward sizes."""

_READS_DEGREES = (RAISES_SMALL, "HYBRID_TRANSFORMER")
_LARGEST_MESSAGE = 2**31 - 1


def layout_of(file: AicbFile, options: LayoutOptions, remarks: Remarks) -> SimaiLayout:
    """Work out the degrees: the user's, else those of the header where SimAI reads them.

    Parameters
    ----------
    file : AicbFile
        The file.
    options : LayoutOptions
        What the user overrides.
    remarks : Remarks
        Takes what would make SimAI's total NaN.

    Raises
    ------
    ConfigError
        If SimAI would divide by a degree that it has not read.
    """
    header = file.header
    read = header.policy in _READS_DEGREES
    known = {name: getattr(options, name) or (getattr(header, name) if read else None) for name in ("tp", "ep", "pp")}
    experts = any(row.cell(column).token.endswith("_EP") for row in file.rows for column in Column)
    missing = [name for name in ("tp", "pp", *(["ep"] if experts else [])) if not known[name]]
    if missing:
        why = "its header does not give" if read else f"with policy {header.policy} it does not read"
        flags = " and ".join(f"--{name}" for name in missing)
        raise ConfigError(
            f"{file.path}: SimAI-Analytical divides by zero here, because {why} {', '.join(missing)}; give {flags}"
        )
    gpus = options.gpus or header.all_gpus
    if not gpus:
        raise ConfigError(f"{file.path}: SimAI-Analytical is told the world size on its command line; give --gpus")
    layout = SimaiLayout(
        gpus=gpus,
        tp=known["tp"] or 1,
        ep=known["ep"] or 1,
        pp=known["pp"] or 1,
        vpp=options.vpp or _or_nan("vpp", header.vpp if read else None, 1, remarks),
        ga=options.microbatches or _or_nan("ga", header.ga if read else None, len(structure(file).blocks), remarks),
    )
    if gpus % (layout.tp * layout.pp):
        are = counted(gpus, "GPU is", "GPUs are")
        text = f"{are} no multiple of tp {layout.tp} x pp {layout.pp}; SimAI takes dp {layout.dp}"
        remarks.add("simai-dp", text, 1)
    return layout


def message_bytes(file: AicbFile, options: LayoutOptions) -> int:
    """Return the size of a message between stages: the user's, else the header's, else none.

    Raises
    ------
    ConfigError
        If it is one that stops SimAI.
    """
    size = options.pp_message_bytes
    size = (file.header.pp_message_bytes or 0) if size is None else size
    if size > _LARGEST_MESSAGE:
        raise ConfigError(
            f"{file.path}: SimAI-Analytical stops at a pp_comm of {size} bytes, above 2^31 - 1; give --pp-comm"
        )
    return size


def _or_nan(key: str, value: int | None, default: int, remarks: Remarks) -> int:
    if value:
        return value
    flag = "--microbatches" if key == "ga" else f"--{key}"
    taken = max(1, default)
    remarks.add(
        f"simai-{key}", f"the header says no {key}, so SimAI's bubble and total are NaN; taken as {taken} ({flag})", 1
    )
    return taken
