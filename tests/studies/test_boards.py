"""Boards of accuracy and coverages of intervals do not get worse unnoticed."""

import pytest

import boards
from judges.board import Board, board_of


@pytest.mark.parametrize("path", boards.PAGES, ids=lambda path: path.stem)
def test_each_table_of_a_page_shows_its_boards_with_their_limits(path):
    known = [Board(*key, limit.rows, limit.figures, {}) for key, limit in boards.limits().items()]
    tables = list(boards.TABLE.finditer(path.read_text(encoding="utf-8")))
    assert tables
    for table in tables:
        shown, lines = boards.shown_in(table, known), table[0].splitlines()
        assert len([line for line in lines if line.startswith("|")]) == 2 + len(shown) > 2
        for board in shown:
            start = f"| {board.subject} | {board.name} | {board.rows:,} |"
            (line,) = [line for line in lines if line.startswith(start)]
            cells = {cell.strip().partition(" ")[0] for cell in line.split("|")}
            assert {f"{value:.1f}" for value in board.figures.values()} <= cells, line


def test_the_page_of_accuracy_shows_every_board():
    (table,) = boards.TABLE.finditer((boards.DOCS / "ACCURACY.md").read_text(encoding="utf-8"))
    assert table["which"] is None


def test_a_table_is_replaced_where_it_stands_and_shows_what_it_says():
    found = [Board("runs", "MoE", 7, {"median": 5.0}, {"median": 6.0}), Board("peaks", "all", 9, {"gap": 4.0}, {})]
    page = "a\n<!-- boards: runs: .* -->\nold\n<!-- end of boards -->\nb\n<!-- boards -->\n<!-- end of boards -->\nc\n"
    written = boards.with_tables(page, found)
    runs, every = boards.TABLE.finditer(written)
    assert "| runs | MoE | 7 | 5.0 (6) |" in runs[0]
    assert "old" not in written
    assert "peaks" not in runs[0]
    assert "| peaks | all | 9 |" in every[0]
    assert [line for line in written.splitlines() if line in "abc" and line] == ["a", "b", "c"]
    assert boards.with_tables(written, found) == written


@pytest.mark.parametrize(
    ("figures", "noticed"),
    [
        ({"median": 5.4, "p90": 15.0, "inside": 90.0, "bias": 3.0}, False),
        ({"median": 5.6, "p90": 15.0, "inside": 90.0, "bias": 3.0}, True),
        ({"median": 1.0, "p90": 16.6, "inside": 90.0, "bias": 3.0}, True),
        ({"median": 1.0, "p90": 1.0, "inside": 87.0, "bias": 3.0}, True),
        ({"median": 1.0, "p90": 1.0, "inside": 99.0, "bias": -4.5}, True),
        ({"median": 1.0, "p90": 1.0, "bias": 3.0}, True),
        ({"median": 1.0, "p90": 1.0, "inside": 99.0, "bias": -3.5}, False),
    ],
)
def test_each_figure_that_gets_worse_is_noticed(figures, noticed):
    limit = {("runs", "MoE"): boards.Limit(9, {"median": 5.0, "p90": 15.0, "inside": 90.0, "bias": 3.0})}
    assert bool(list(boards.worse([Board("runs", "MoE", 9, figures, {})], limit))) == noticed


@pytest.mark.parametrize("by", ["source", "chip", "framework"])
def test_intervals_of_nine_in_ten_hold_87_to_93_percent_of_runs(by):
    """Wider ones say less than is known: `inside` alone would have them as wide as can be."""
    assert 87 <= boards.limits()[f"steps, {by} left out", "all"].figures["inside"] <= 93


def test_a_board_that_is_not_shown_any_more_is_noticed(tmp_path):
    known = [Board("runs", "MoE", 7, {"median": 5.0}, {}), Board("peaks", "all", 9, {"gap": 4.0, "p90": 9.5}, {})]
    path = tmp_path / "boards.toml"
    path.write_text(boards.as_toml(known))
    allowed = boards.limits(path)
    assert list(boards.worse(known, allowed)) == []
    assert list(boards.worse([], allowed)) == ["runs: MoE: is not shown any more", "peaks: all: is not shown any more"]


def test_what_is_asked_and_missed_is_told():
    board = Board(
        "runs", "MoE", 7, {"median": 6.0, "inside": 86.0, "p90": 15.0}, {"median": 5, "inside": 85, "p90": 17}
    )
    assert boards.missed(board) == ["median"]
    assert "| 6.0 (5) | 15.0 (17) | 86.0 (85) |" in boards.as_table([board])


def test_a_board_counts_errors_as_shares_of_what_was_measured():
    board = board_of("runs", "all", [1.1, 0.8, 2.0], [1.0, 1.0, 2.0], [True, False, True], median=5.0, inside=90.0)
    assert board.rows == 3
    assert board.figures == {"median": 10.0, "p90": 18.0, "bias": 0.0, "inside": 66.67}
    assert board.asked == {"median": 5.0, "inside": 90.0}
