"""Traces of the straggler study: one table of what each worker ran, over many steps of a production job.

A row is an operation; only some ranks are recorded, one of each group that splits a layer. `grammar` reads the columns
(Parquet with the extra ``frames``, or CSV) and the job's ``meta.yaml`` next to them, `order` says what follows what on
a rank, and `read` makes a recorded program of a step (`traincast.workload.recorder`) and hands out the others.

Source: ByteDance-Seed/StragglerAnalysis (readme.md, analyzer/metatypes.py); Lin et al., Understanding Stragglers in
Large Model Training Using What-if Analysis, OSDI 2025, arXiv 2505.05713.
"""

from traincast.formats.contract import FORMATS, Format, Sniff

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id")
"""Columns that every trace has; ``gmc``, the number of the model chunk in the model, follows from the others."""


def looks_like(head: str) -> Sniff:
    """Tell how sure it is that a text begins such a trace."""
    if head.startswith("PAR1"):
        return Sniff(0.9, "is a Parquet file")
    names = {name.strip().strip('"') for name in head.partition("\n")[0].split(",")}
    if set(COLUMNS) <= names:
        return Sniff(0.98, "its first line has the columns of a straggler trace")
    return Sniff(0.0, "is neither Parquet nor a CSV file with the columns optype, seq_id, mb_id ...")


FORMATS.register("straggler-st")(
    Format(
        name="straggler-st",
        title="straggler trace",
        options=frozenset({"step"}),
        looks_like=looks_like,
        reader="traincast.formats.straggler_st.reader",
    )
)
