"""Simulate one step of files."""

from typing import Any

from traincast.api.files import Files, open_run
from traincast.api.given import loaded, record_and_options, refuse_both
from traincast.errors import ConfigError
from traincast.job.options import LayoutOptions, SimulateOptions, changed_options, make_options
from traincast.job.record import RunRecord
from traincast.job.words import SIMULATE_WORDS, sorted_out, takes
from traincast.simulation.reproducible import choose, reproducible_simulation, unchanged_files
from traincast.simulation.result import Result
from traincast.simulation.study import Study
from traincast.workload.workload import Workload


@takes(SIMULATE_WORDS)
def simulate(
    files: Files | Workload | Result,
    options: SimulateOptions | None = None,
    *,
    engine: str = "fast",
    study: Study | None = None,
    **words: Any,  # noqa: ANN401
) -> Result:
    """Simulate one step of a workload or of the files that describe it.

    A result of files, its ``result.json`` or folder is simulated again with what it was made from; options, or
    keywords, win over that.

    Parameters
    ----------
    files : path, sequence of paths, Workload, or Result
        Files of one run, folders and patterns of them; what `traincast.read` made of them; or a result.
    options : SimulateOptions, optional
        All options at once; or as keywords:
    study : Study, optional
        What earlier steps prepared; this one leaves there what it prepares.
    **words
        The words of the command line's flags, such as ``cluster="h100"``, ``tp=8`` or ``slow={7: 1.3}``: the fields
        of `SimulateOptions` and `LayoutOptions`, under any name of their flags.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2", cluster="h100", what_if="rank7.compute=peers")
    >>> round(result.iteration_time_s, 2), [f"{each.saving_s:.1f} s" for each in result.what_if]
    (3.85, ['1.0 s'])
    """
    (said,) = sorted_out(words, SIMULATE_WORDS)
    refuse_both(options, said)
    source = loaded(files)
    if isinstance(source, Result):
        record, base = record_and_options(source, files)
        return simulate_record(record, options or changed_options(base, **said), engine=engine)
    chosen = options or make_options(**said)
    if isinstance(source, Workload) and chosen.layout != LayoutOptions():
        raise ConfigError("the layout of a workload is decided when it is read; give layout options to traincast.read")
    setting = choose(chosen, chosen.cluster, engine)
    if isinstance(source, Workload):
        return reproducible_simulation(source, setting, study=study)
    run = open_run(source)
    return reproducible_simulation(run.read(chosen.layout), setting, run.read, study)


def simulate_record(record: RunRecord, options: SimulateOptions | None = None, *, engine: str = "fast") -> Result:
    """Simulate the files of a record again, perhaps with other options, whose cluster goes before the record's.

    Examples
    --------
    >>> import traincast
    >>> _ = traincast.save_result(traincast.simulate("examples/megatron_pp4_tp2"), "run")
    >>> traincast.api.simulate_record(traincast.api.load_record("run"))
    <Result: step 3.851 s, 8 ranks (tp 2, pp 4)>
    """
    if record.command != "simulate":
        raise ConfigError("is the result of a forecast; run traincast predict on it", "run.command")
    asked = options or record.options
    files = unchanged_files(record.inputs)
    run = open_run(files)
    workload = run.read(asked.layout)
    if asked.cluster is not None:
        return reproducible_simulation(workload, choose(asked, asked.cluster, engine), run.read)
    assumed, described = record.cluster_assumed, record.inputs
    chosen = choose(asked, record.cluster, engine, cluster_assumed=assumed, described_by=described)
    return reproducible_simulation(workload, chosen, run.read)
