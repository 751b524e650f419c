"""Alarms of a watched run, as lines for people."""

from traincast.checking.alarm import Alarm
from traincast.units import format_share


def alarm_text(alarm: Alarm) -> str:
    """Return an alarm: what changed and how sure that is, and below it what would explain it."""
    causes = "".join(f"\n  perhaps: {cause}" for cause in alarm.explained_by)
    sure = format_share(min(alarm.confidence, 0.99), 0)
    return f"{alarm.text} (noticed at step {alarm.noticed_step}, confidence {sure}){causes}"
