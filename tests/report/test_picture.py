"""The picture of a step, and those of the guide."""

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

import traincast
from traincast.errors import ConfigError
from traincast.report import picture
from traincast.report.json import result_from_json, to_json
from traincast.report.picture import write_dark_picture, write_picture

ROOT = Path(__file__).parents[2]
RUN = ROOT / "examples" / "megatron_pp4_tp2"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(result, write=write_picture):
    stream = io.BytesIO()
    write(result, stream)
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
    bubble = widths(data, picture._COLOURS["waiting for messages (bubble)"][0])
    scale = picture._WIDTH / result.iteration_time_s
    expected = [rank.breakdown_s["bubble"] * scale for rank in result.ranks]
    assert list(bubble.values()) == pytest.approx(expected, abs=3.0)
    assert "Step 3.851 s" in ElementTree.fromstring(data).find(f"{SVG}title").text  # noqa: S314


def test_many_ranks_are_those_that_matter(result, monkeypatch):
    monkeypatch.setattr(picture, "MOST_RANKS", 3)
    rows = [each.text for each in ElementTree.fromstring(drawn(result)).iter(f"{SVG}text")]  # noqa: S314
    assert sum(text.startswith("rank ") for text in rows) == 3


def test_a_result_without_operations_has_none(result):
    with pytest.raises(ConfigError, match="not hold single operations"):
        drawn(result_from_json(to_json(result), "result.json"))


def test_the_legend_names_what_is_shown_and_nothing_else(result):
    texts = [each.text for each in ElementTree.fromstring(drawn(result)).iter(f"{SVG}text")]  # noqa: S314
    assert "forward" in texts
    assert "recompute" not in texts


def test_dark_pages_get_the_same_picture_in_other_colours(result):
    light, dark = drawn(result), drawn(result, write_dark_picture)
    for name, (on_light, on_dark) in picture._COLOURS.items():
        assert on_light != on_dark, name
        assert len(widths(light, on_light)) == len(widths(dark, on_dark))


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("slow_rank.svg", write_picture, {}),
        ("slow_rank_dark.svg", write_dark_picture, {}),
        ("slow_rank_mended.svg", write_picture, {"compute_slowdown": {7: 0.45}}),
    ],
)
def test_the_pictures_of_the_pages_are_what_the_code_draws(name, write, options):
    # To draw them again: python tools/pictures.py
    shown = (ROOT / "docs" / "pictures" / name).read_bytes()
    assert shown == drawn(traincast.simulate(RUN, **options), write)


def test_the_life_of_a_step_is_drawn_as_the_code_calls_its_acts():
    from pictures import ACTS, life

    assert (ROOT / "docs" / "pictures" / "life_of_a_step.svg").read_text() == life()
    page = (ROOT / "docs" / "concepts.md").read_text()
    assert all(f"`{act}`" in page for act in ACTS)
