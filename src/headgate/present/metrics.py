"""Metrics in words: what they are, what is wrong with them, how near they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.check.answers import AnswerDoc, MetricDoc
from headgate.check.reasons import duration, quantity
from headgate.metrics.samples import CAUSE_MEANINGS, Cause
from headgate.present.view import Said, Tone
from headgate.present.words import bare_reason

FAILING = ("breached", "unavailable")
CURRENT = ("healthy", "last_value", "breached", "exempted")
"""The states in which the value is what the metric is now; else it is what it last was."""
EXPECTED = (Cause.NEVER_READ.value, Cause.HIBERNATING.value, Cause.WARMING_UP.value)
UNSPOKEN = tuple(
    cause.value
    for cause in (Cause.ELSEWHERE, Cause.NO_PRIMARY, Cause.SPLIT_BRAIN, Cause.HANDING_OVER)
)
"""Of the shard, not of one metric: no agent rolls up it."""
MEANINGS: Mapping[str, str] = {cause.value: meaning for cause, meaning in CAUSE_MEANINGS.items()}
MAX_SENTENCE_CHARS = 160
_TONES: Mapping[str, Tone] = {
    "healthy": "good",
    "last_value": "warned",
    "ignored": "warned",
    "exempted": "warned",
    "breached": "bad",
    "unavailable": "bad",
    "idle": "",
}


def state_of(doc: MetricDoc) -> Said:
    if doc.state == "unavailable" and doc.cause in EXPECTED:
        return Said(told(doc.cause), "warned")
    return Said(told(doc.state), _TONES.get(doc.state, ""))


def value_text(doc: MetricDoc) -> str | None:
    return None if doc.value is None else quantity(doc.value, doc.unit)


def threshold_text(doc: MetricDoc) -> str:
    if doc.threshold is None:
        return ""
    return f"{doc.comparison} {quantity(doc.threshold, doc.unit)}"


def told(cause: str | None, detail: str = "") -> str:
    """`timed out: no answer in 0.5 s`."""
    return ": ".join(filter(None, ((cause or "").replace("_", " "), detail)))


def absence_text(doc: MetricDoc, *, detail: bool = True) -> str:
    """`timed out for 2.2 s: no answer in 0.5 s`; without the server's own words, which may be
    many, where `detail` is false."""
    since = f" for {duration(doc.unavailable_for_ms / 1000)}" if doc.unavailable_for_ms else ""
    return told(f"{told(doc.cause)}{since}", doc.detail if detail else "")


def obstacle(doc: MetricDoc) -> str:
    """Without ages, which would change from look to look."""
    words = told(doc.cause, doc.detail)
    if doc.state != "breached" or doc.value is None or doc.threshold is None:
        return f"{doc.name} has no value ({words or 'no cause given'})"
    where = f" on {words}" if words and doc.scope == "shard" and not doc.cause else ""
    behind = f" ({words})" if words and not where else ""
    return f"{doc.name} {quantity(doc.value, doc.unit)}, {beyond(doc)}{where}{behind}"


def obstacles(failing: Sequence[MetricDoc]) -> str:
    """Breaches first; what has no value for one and the same reason is one obstacle."""
    found: dict[object, list[MetricDoc]] = {}
    for doc in sorted(failing, key=lambda m: m.state != "breached"):
        key = doc.name if doc.state == "breached" else (doc.cause, doc.detail)
        found.setdefault(key, []).append(doc)
    return "; ".join(map(_obstacle, found.values()))


def _obstacle(same: Sequence[MetricDoc]) -> str:
    if len(same) == 1:
        return obstacle(same[0])
    words = told(same[0].cause, same[0].detail) or "no cause given"
    return f"{', '.join(doc.name for doc in same)} have no value ({words})"


def beyond(doc: MetricDoc) -> str:
    side = "at or above" if doc.comparison == ">=" else "above"
    return f"{side} {quantity(doc.threshold or 0.0, doc.unit)}"


def rejection_text(answer: AnswerDoc) -> str:
    """The agent's sentence; where servers' messages made it a page, the gist of it."""
    reason = bare_reason(answer)
    gist = "; ".join(_gist(m) for m in answer.metrics if m.state in FAILING)
    if len(reason) > MAX_SENTENCE_CHARS and gist:
        return gist
    return reason or answer.verdict


def _gist(doc: MetricDoc) -> str:
    if doc.state == "unavailable":
        return f"{doc.name} has no value ({absence_text(doc, detail=False)})"
    return f"{doc.name} is {value_text(doc)}, {beyond(doc)}"


def nearest(metrics: Sequence[MetricDoc]) -> MetricDoc | None:
    """The metric that has used most of its threshold."""
    shares = [(m.share, m.metric, m) for m in metrics if m.share is not None]
    return max(shares, key=lambda item: item[:2])[2] if shares else None
