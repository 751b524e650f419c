"""Every registered writer keeps these promises; a new one is tested by registering."""

import re
from pathlib import Path

import pytest

import traincast
from support import rich_rows, write_aicb
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.formats.contract import FORMATS, Format
from traincast.formats.open import expand_inputs, identify
from traincast.formats.writer import WRITERS

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = WRITERS.names()
JOBS = {
    "dense": {"model": "llama3-8b", "tp": 2, "pp": 2},
    "experts": {"model": "mixtral-8x7b", "pp": 4, "ep": 4},
}
SOURCES = (*JOBS, "workload", "trace", "forecast")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return a file of every kind that can be converted."""
    folder = tmp_path_factory.mktemp("sources")
    found = {"trace": EXAMPLES / "megatron_pp4_tp2", "forecast": EXAMPLES / "neusight_gpt2_large_dp.tsv"}
    for name, fields in JOBS.items():
        degrees = "".join(f"{key} = {value}\n" for key, value in fields.items() if key != "model")
        found[name] = folder / f"{name}.toml"
        found[name].write_text(
            f'[model]\nname = "{fields["model"]}"\n[parallel]\n{degrees}[batch]\nglobal_batch = 32\nseq_length = 2048\n'
            '[cluster]\nname = "h100"\ngpus = 16\n'
        )
    found["workload"] = write_aicb(folder / "workload.txt", rich_rows(), tp=2, pp=2, ga=2, gpus=8, pp_comm=1 << 20)
    return found


@pytest.fixture(scope="module")
def convert(sources, tmp_path_factory):
    """Return what converts a source once: the files by name, or the reason why it is refused."""
    known = {}

    def converted(source, to):
        if (source, to) not in known:
            out = tmp_path_factory.mktemp("out") / "written"
            try:
                known[source, to] = traincast.convert(sources[source], out, to), out
            except (FormatError, ConfigError, InfeasibleError) as error:
                assert not out.exists(), "a refused conversion leaves nothing behind"
                known[source, to] = error, None
        return known[source, to]

    return converted


def content(out):
    files = sorted(out.rglob("*")) if out.is_dir() else [out]
    return {str(each.relative_to(out)): each.read_bytes() for each in files if each.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_says_what_it_is(name):
    writer = WRITERS.get(name)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", writer.name)
    assert writer.title.strip()
    for option in writer.options:
        assert option.help.endswith(".")
        assert not option.choices or option.default in option.choices
    assert writer.chosen({}) == {option.name: option.default for option in writer.options}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_writer_writes_something_and_refuses_the_rest_with_a_reason(name, convert):
    outcomes = {source: convert(source, name) for source in SOURCES}
    assert any(out is not None for _, out in outcomes.values()), outcomes
    for done, out in outcomes.values():
        if out is None:
            assert len(str(done)) > 20
        else:
            assert content(out)
            assert all(note.code and note.text for note in done.lost)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_run_gives_the_same_bytes(name, convert, sources, tmp_path):
    written = {source: out for source in SOURCES if (out := convert(source, name)[1]) is not None}
    for source, out in written.items():
        traincast.convert(sources[source], tmp_path / source, name)
        assert content(tmp_path / source) == content(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name in FORMATS.names()])
def test_what_is_written_is_read(name, convert):
    form = FORMATS.get(name)
    for out in (found for source in SOURCES if (found := convert(source, name)[1]) is not None):
        kinds = {identify(path) for path in expand_inputs([out])}
        assert form in kinds and not any(isinstance(kind, Format) for kind in kinds - {form})
        if isinstance(form, Format):
            assert traincast.simulate(out, cluster="h100").iteration_time_s > 0
