"""What is known of a watched run as OpenMetrics text, for Prometheus' textfile collector or a scrape.

Format: OpenMetrics 1.0, https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from traincast.checking.alarm import KINDS
from traincast.checking.watching import State


def open_metrics(state: State, log: str) -> str:
    """Return the state of a run, with the name of its log as a label."""
    name = log.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    label = f'log="{name}"'
    lines: list[str] = []

    def gauge(metric: str, meaning: str, value: float, unit: str = "") -> None:
        lines.append(f"# TYPE {metric} gauge")
        lines.extend([f"# UNIT {metric} {unit}"] if unit else [])
        lines.extend([f"# HELP {metric} {meaning}", f"{metric}{{{label}}} {value!r}"])

    gauge("traincast_step_seconds", "Time of the last step.", state.step_s, "seconds")
    gauge("traincast_usual_step_seconds", "Median of the last steps.", state.usual_s, "seconds")
    gauge("traincast_expected_low_seconds", "Nineteen steps in twenty take longer.", state.low_s, "seconds")
    gauge("traincast_expected_high_seconds", "Nineteen steps in twenty take less.", state.high_s, "seconds")
    gauge("traincast_step", "Number of the last step.", state.step)
    gauge("traincast_well", "Whether there was no alarm lately.", int(state.verdict == "well"))
    lines += ["# TYPE traincast_verdict stateset", "# HELP traincast_verdict Kind of the last alarm, or well."]
    for kind in ("well", *KINDS):
        lines.append(f'traincast_verdict{{{label},traincast_verdict="{kind}"}} {int(state.verdict == kind)}')
    lines += ["# TYPE traincast_alarms counter", "# HELP traincast_alarms Alarms since the watch began."]
    for kind in KINDS:
        lines.append(f'traincast_alarms_total{{{label},kind="{kind}"}} {state.alarms.get(kind, 0)}')
    return "\n".join([*lines, "# EOF", ""])
