"""Readings and times in words, fit for a terminal."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from headgate.wire.reasons import duration, quantity

if TYPE_CHECKING:
    from headgate.wire.answers import AnswerDoc, MetricDoc

MAX_SENTENCE_CHARS = 160


def plain(text: str) -> str:
    """Without control characters: a server's message may not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text).strip()


def local_time(text: str, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """By this machine's clock; what is no time is shown as it came."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime(form)
    except ValueError:
        return plain(text)


def value_text(metric: MetricDoc) -> str | None:
    return None if metric.value is None else quantity(metric.value, plain(metric.unit))


def threshold_text(metric: MetricDoc) -> str:
    if metric.threshold is None:
        return ""
    return f"{metric.comparison} {quantity(metric.threshold, plain(metric.unit))}"


def absence_text(metric: MetricDoc) -> str:
    """`timed out for 2.2 s: no answer in 0.5 s`."""
    return ": ".join(part for part in (cause_text(metric), plain(metric.detail)) if part)


def cause_text(metric: MetricDoc) -> str:
    """`timed out for 2.2 s`: without the server's own words, which may be many."""
    words = plain(metric.cause or "").replace("_", " ")
    return f"{words} for {duration(metric.absent_for_ms / 1000)}" if metric.absent_for_ms else words


def refusal_text(answer: AnswerDoc) -> str:
    """The agent's sentence; where servers' messages made it a page, the gist of it."""
    reason = plain(answer.reason).removeprefix(f"{plain(answer.database)}: ")
    gist = "; ".join(_gist(m) for m in answer.metrics if m.state in ("breached", "absent"))
    if len(reason) > MAX_SENTENCE_CHARS and gist:
        return gist
    return reason or plain(answer.verdict)


def _gist(metric: MetricDoc) -> str:
    if metric.state == "absent":
        return f"{plain(metric.name)} has no value ({cause_text(metric)})"
    return f"{plain(metric.name)} is {value_text(metric)}, refused {threshold_text(metric)}"


def age_text(seconds: float) -> str:
    """Short enough for a column: 412ms, 3.4s, 12min, 3.5h, 4d."""
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:.0f}d"
    return duration(seconds).replace(" ", "")


def ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


# --- what would have to change (R144) --------------------------------------------------------


def remedies(answer: AnswerDoc) -> list[str]:
    """What stands between this client and an OK, each with the change that lifts it."""
    if answer.admitted:
        return []
    needed = [_remedy(m) for m in answer.metrics if m.state in ("breached", "absent")]
    if answer.rule is not None and answer.verdict in _BY_RULE:
        needed.insert(0, f"rule {plain(answer.rule)} must end: {plain(answer.reason)}")
    return needed or [plain(answer.reason)]


_BY_RULE = ("REJECT_BY_RATIO", "APP_DENIED")
"""A rule that leaves a client to the metrics stands in nobody's way."""


def _remedy(metric: MetricDoc) -> str:
    name = plain(metric.name)
    if metric.state == "absent":
        if metric.cause == "unknown":
            return f"{name} must exist here: {plain(metric.detail)}"
        return f"{name} must be readable again: {absence_text(metric)}"
    limit = quantity(metric.threshold or 0.0, plain(metric.unit))
    goal = f"below {limit}" if metric.comparison == ">=" else f"{limit} or below"
    value = value_text(metric)
    if not metric.over:
        # By its last value it is fine already: debounce still counts the ones before.
        return f"{name} must stay {goal} (it is {value} now) until debounce lets it go"
    return f"{name} must fall from {value} to {goal}"


def nearest(answer: AnswerDoc) -> MetricDoc | None:
    """The metric that has used most of its threshold."""
    shares = [(m.share, m.metric, m) for m in answer.metrics if m.share is not None]
    return max(shares, key=lambda item: item[:2])[2] if shares else None
