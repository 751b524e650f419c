"""Notes in a terminal: a line each of what was assumed, in full with --verbose, little of what hardly matters."""

import pytest

from traincast import api
from traincast.diagnostics import Note, in_brief
from traincast.report.terminal import layout as ui
from traincast.report.terminal.step import print_result

RUNS = {
    "forecast": lambda: api.predict("examples/llama3_70b_512gpu.toml"),
    "aicb": lambda: api.simulate("examples/aicb_gpt_405b_1024gpu.txt"),
    "one rank": lambda: api.simulate("examples/megatron_rank0_pp2.txt", microbatches=8, cluster="h100"),
    "experts": lambda: api.simulate("examples/megatron_moe_profile_rank7.txt", pp=4, ep=4, dp=4, microbatches=16),
    "operators": lambda: api.simulate("examples/neusight_gpt2_large_dp.tsv", layers=36, cluster="a100"),
}


def listed(output, title="Assumptions"):
    """Return the lines of a list under its title."""
    return output.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_what_was_assumed_is_a_line_each(run, shown):
    result = RUNS[run]()
    lines = listed(shown(print_result, result, width=110))
    entries = [line for line in lines if line.startswith("  - ")]
    hints = [line for line in lines if not line.startswith("  - ")]
    assert entries
    assert len(hints) == 1
    assert "--verbose shows" in hints[0]
    # Nothing is lost: in full every one is there, with its arithmetic.
    full = " ".join(shown(print_result, result, width=4000, verbose=True).split())
    assert all(" ".join(note.text.split()) in full for note in result.assumptions)


def test_a_long_list_is_told_by_its_first_names():
    names = [f"--flag-{number}" for number in range(40)]
    told = in_brief("no effect", names)
    assert told.startswith("no effect: --flag-0, --flag-1, ")
    assert told.endswith(" more")
    assert told.count("--flag") + int(told.split()[-2]) == 40
    assert len(told) < 100
    assert in_brief("no effect", names[:3]) is None
    assert in_brief("no effect", ["x" * 200]) == "no effect: 1 in all"


def test_a_long_text_ends_where_a_clause_does():
    assert ui.in_brief(Note("code", "short")) == "short"
    assert ui.in_brief(Note("code", "long " * 50, brief="in brief")) == "in brief"
    text = f"{'one ' * 18}; {'two ' * 18}"
    assert ui.in_brief(Note("code", text)) == f"{'one ' * 18} ..."[: len("one " * 18)] + " ..."
    assert len(ui.in_brief(Note("code", "word" * 100))) <= 104


def test_what_moves_the_step_little_is_said_with_verbose_alone(result, shown):
    from msgspec.structs import replace

    notes = (Note("one", "moves much", effect=0.2), Note("two", "moves little", effect=0.004), Note("three", "unknown"))
    told = replace(result, assumptions=notes)
    lines = listed(shown(print_result, told))
    assert [line.strip() for line in lines] == [
        "- moves much",
        "- unknown",
        "1 more moves the step by less than 1 %; --verbose shows all, in full",
    ]
    assert "moves little" in shown(print_result, told, verbose=True)
