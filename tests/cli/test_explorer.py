"""Pages to explore, written by the commands."""

import json
import re


def facts_of(page, run=0):
    (text,) = re.findall(rf'id="run-{run}">(.*?)</script>', page.read_text())
    return json.loads(text)


def operations_of(page):
    return re.findall(r'id="columns-0">(.*?)</script>', page.read_text())


def test_pages_of_one_step_and_of_two(call, tmp_path):
    out = tmp_path / "run"
    assert call("simulate", "examples/megatron_pp4_tp2", "--out", out, "--quiet") == (0, "", "")
    assert facts_of(out / "report.html")["result"]["measured_s"]
    again, two = tmp_path / "again.html", tmp_path / "two.html"
    code, shown, _ = call("report", out, "--html", again)
    assert (code, "again.html" in shown) == (0, True)
    assert operations_of(again) == operations_of(out / "report.html")
    code, _, _ = call("compare", out, out, "--html", two)
    assert code == 0
    assert facts_of(two, run=1)["name"] == str(out)


def test_what_cannot_be_written_or_shown_is_said(call, tmp_path):
    code, _, error = call("report", "examples/none.json", "--html", tmp_path / "page.html")
    assert (code, list(tmp_path.iterdir())) == (1, [])
    assert "none.json" in error
    code, _, error = call("compare", "examples/megatron_pp4_tp2", "examples/megatron_pp4_tp2", "--html", tmp_path)
    assert (code, "is a directory" in error) == (1, True)
