"""The picture of a step, and those of the guide."""

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

import traincast
from traincast.errors import ConfigError
from traincast.report import picture
from traincast.report.json import result_from_json, to_json
from traincast.report.picture import write_picture

ROOT = Path(__file__).parents[2]
RUN = ROOT / "examples" / "megatron_pp4_tp2"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(result):
    stream = io.BytesIO()
    write_picture(result, stream)
    return stream.getvalue()


def widths(data, colour):
    """Return the width of a colour in each row, by its height on the page."""
    found = {}
    for each in ElementTree.fromstring(data).iter(f"{SVG}rect"):  # noqa: S314 our own
        if each.get("fill") == colour and float(each.get("y", 0)) >= picture._TOP:
            found[float(each.get("y"))] = found.get(float(each.get("y")), 0.0) + float(each.get("width"))
    return found


@pytest.fixture(scope="module")
def result():
    return traincast.simulate(RUN)


def test_what_is_drawn_is_the_breakdown(result):
    data = drawn(result)
    bubble = widths(data, picture._COLOURS["waiting for messages (bubble)"])
    scale = picture._WIDTH / result.iteration_time_s
    expected = [rank.breakdown_s["bubble"] * scale for rank in result.ranks]
    assert list(bubble.values()) == pytest.approx(expected, abs=3.0)
    assert "Step 3.851 s" in ElementTree.fromstring(data).find(f"{SVG}title").text  # noqa: S314


def test_many_ranks_are_those_that_matter(result, monkeypatch):
    monkeypatch.setattr(picture, "MOST_RANKS", 3)
    rows = [each.text for each in ElementTree.fromstring(drawn(result)).iter(f"{SVG}text")]  # noqa: S314
    assert sum(text.startswith("rank ") for text in rows) == 3


def test_a_result_without_operations_has_none(result):
    with pytest.raises(ConfigError, match="no single operations"):
        drawn(result_from_json(to_json(result), "result.json"))


@pytest.mark.parametrize(
    ("name", "options"), [("slow_rank.svg", {}), ("slow_rank_mended.svg", {"compute_slowdown": {7: 0.45}})]
)
def test_the_pictures_of_the_guide_are_what_the_code_draws(name, options):
    # To draw them again: traincast simulate examples/megatron_pp4_tp2 --out DIR --report picture (--slow 7=0.45).
    shown = (ROOT / "docs" / "pictures" / name).read_bytes()
    assert shown == drawn(traincast.simulate(RUN, **options))
