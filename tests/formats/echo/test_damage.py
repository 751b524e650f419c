"""Random damage to a trace gives a FormatError with its place, or a trace; never anything else."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from echo_runs import line_read
from traincast.errors import FormatError
from traincast.formats.echo.grammar import parse, parse_line
from traincast.formats.echo.inspection import generation, sizes_of_shapes, totals, trace_warnings
from traincast.formats.echo.lines import fused_pairs
from traincast.formats.echo.sniff import looks_like

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXT = (EXAMPLES / "megatron_moe_profile_rank7.txt").read_text()
REAL = next((EXAMPLES / "megatron_pp4_tp2").glob("*rank7_*")).read_text()
PIECES = st.sampled_from(
    [*",='\"[]()\\:{}", "duration=", ", ", "sub_operations=[", "None", "torch.", "-1", "9" * 40, "\u0663"]
)


@st.composite
def damaged(draw):
    text = draw(st.sampled_from([TEXT, REAL, REAL[-2500:]]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 60))
        text = text[:start] + draw(PIECES | st.text(max_size=5)) + text[start + length :]
    return text


@settings(max_examples=250, deadline=None)
@given(damaged())
def test_damage_is_refused_with_its_place_or_read(text):
    looks_like(text)
    try:
        ops = parse("t.txt", text)
    except FormatError as problem:
        assert problem.path == "t.txt"
        assert problem.line is not None
        assert 1 <= problem.line <= text.count("\n") + 1
        return
    for op in ops:
        again = parse_line(line_read(op), op.path, op.line)
        assert again.fields == op.fields
        assert [sub.call.fields for sub in again.sub_ops] == [sub.call.fields for sub in op.sub_ops]
        assert line_read(again) == line_read(op)
    generation(ops)
    sizes_of_shapes(ops)
    totals(ops)
    trace_warnings("t.txt", ops)
    fused_pairs(ops)
