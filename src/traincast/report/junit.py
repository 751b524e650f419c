"""A check as a JUnit file, which pipelines show as a test.

It fails where the step is slower, and is skipped where nobody can tell.
Source: the schema that Jenkins' xUnit plug-in and GitLab read (junit-10.xsd; docs.gitlab.com, unit test reports).
"""

from xml.etree.ElementTree import Element, SubElement, tostring

from traincast.checking.check import Check
from traincast.checking.verdict import Word
from traincast.report.plain import printable
from traincast.report.terminal.check import check_line
from traincast.units import format_share

_SUITE = "traincast check"


def check_to_junit(check: Check) -> bytes:
    """Return a check as a JUnit document of one test."""
    word, line = check.verdict.word, printable(check_line(check))
    failed, skipped = word is Word.SLOWER, word is Word.CANNOT_TELL
    counts = {"tests": "1", "failures": str(int(failed)), "errors": "0", "skipped": str(int(skipped))}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": _SUITE, **counts})
    seconds = f"{check.expected.step_s * check.verdict.ratio:.6g}"
    case = SubElement(suite, "testcase", {"classname": _SUITE, "name": _name(check), "time": seconds})
    if failed:
        SubElement(case, "failure", {"message": line, "type": "slower"}).text = "\n".join(_lines(check))
    elif skipped:
        SubElement(case, "skipped", {"message": f"{line}: {check.verdict.why}"})
    else:
        SubElement(case, "system-out").text = line
    document: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _name(check: Check) -> str:
    logs = check.measured.logs if check.measured is not None else ()
    return printable(f"step time of {', '.join(logs)}") if logs else "step time of the changed job"


def _lines(check: Check) -> list[str]:
    """Return why a step is called slower, a line each."""
    causes = [
        f"{each.name}: {each.ratio:.3f} x, {format_share(each.chance, 0)}; look at {each.look}" for each in check.causes
    ]
    return [printable(each) for each in (check.verdict.why, check.expected.why, *causes)]
