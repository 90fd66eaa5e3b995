"""Metrics: what they are, what is wrong with them, how near they are, what a change did. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from headgate.check.answer_api import AnswerDoc, MetricDoc
from headgate.check.api import MetricsDoc, MetricView, RemovedDoc, WideMetricDoc
from headgate.check.reasons import duration, quantity
from headgate.metrics.samples import CAUSE_MEANINGS, Cause
from headgate.present.view import (
    DASH,
    Block,
    Cell,
    Line,
    Note,
    Readings,
    Said,
    Table,
    Tone,
    columns,
    line,
    outcome,
)
from headgate.present.words import advice_of, age_text, bare_reason, moment

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
OUTSIDE = "*"
OUTSIDE_NOTE = f"{OUTSIDE} outside the default set: applies only to checks that name it"
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


def rejection_view(answer: AnswerDoc) -> list[Block]:
    told = f"  {answer.app} on {answer.database}: {rejection_text(answer)}"
    if answer.retry_after_ms is not None:
        told = f"{told}; retry in {duration(answer.retry_after_ms / 1000)}"
    head = line(Said("REJECTED", "bad"), told)
    return [head, line(), Readings(answer.metrics)] if answer.metrics else [head]


# --- their settings -----------------------------------------------------------------------------

WIDE = 80


def metrics_view(found: MetricsDoc) -> list[Block]:
    not_here = [line(Said(f"not in force here: {told}", "unknown")) for told in found.rejected]
    if not found.metrics:
        return [line(Said("no metric is configured", "warned")), *not_here]
    blocks: list[Block] = []
    for name in dict.fromkeys(view.database for view in found.metrics):
        mine = [view for view in found.metrics if view.database == name]
        blocks += [line(Said(name, "strong")), _metrics_table(mine)]
        blocks += [line(Said(note, "unknown")) for note in notes_of([v.now for v in mine])]
        blocks += [] if all(v.in_default for v in mine) else [line(Said(OUTSIDE_NOTE, "quiet"))]
        blocks.append(line())
    advice = [one for view in found.metrics for one in view.advice]
    return [*blocks, *advice_of(advice), *not_here]


def _metrics_table(views: Sequence[MetricView]) -> Table:
    ends = ("ends",) if any(view.expires_at for view in views) else ()
    wide = {"every": WIDE, "fine to": WIDE, "source": WIDE, "set in": WIDE}
    names = columns("metric", "value", "threshold", *wide, *ends, "state", right=("value",), **wide)
    return Table(names, [_settings_row(view, bool(ends)) for view in views])


def _settings_row(view: MetricView, has_end: bool) -> list[Cell]:
    end = moment(view.expires_at, form="%m-%d %H:%M %Z") if view.expires_at else ""
    word, tone = state_of(view.now)
    if tone == "bad":
        why = f": {absence_text(view.now, detail=False)}" if view.now.cause is not None else ""
        word = f"{word.upper()}{why}"
    return [
        view.metric + ("" if view.in_default else OUTSIDE),
        value_text(view.now) or DASH,
        Said(threshold_text(view.now), "quiet"),
        age_text(view.interval_s),
        age_text(view.granularity_s),
        Said(view.source, "quiet"),
        Said(_set_in(view), "quiet"),
        *([end] if has_end else []),
        Said(word, tone),
    ]


def notes_of(metrics: Sequence[MetricDoc], fits_chars: int = 0) -> list[str]:
    """Messages too long for their row: beneath the table, each once, with its metrics."""
    names: dict[str, list[str]] = {}
    for metric in metrics:
        is_told = metric.state != "idle" and (metric.cause or metric.detail)
        if is_told and len(absence_text(metric)) > fits_chars:
            # Without the time: what failed for one reason is shown once.
            why = absence_text(structs.replace(metric, unavailable_for_ms=None))
            names.setdefault(why, []).append(metric.name)
    return [f"{', '.join(same)}: {why}" for why, same in names.items()]


def _set_in(view: MetricView) -> str:
    return f"runtime, rev {view.revision}" if view.origin == "runtime" else view.origin


def metric_view(view: MetricView) -> list[Block]:
    where = Said(f"  {view.source}, set in {_set_in(view)}", "quiet")
    head = line(Said(f"{view.database}/{view.metric}", "strong"), where)
    timing = (
        f"probed every {duration(view.interval_s)} · given up after {duration(view.timeout_s)} · "
        f"stale after {duration(view.max_age_s)} · as fine as {duration(view.granularity_s)}"
    )
    blocks: list[Block] = [head, line(), Readings([view.now])]
    blocks += [line(), line(Said(timing, "quiet"))]
    blocks += [line(), *settings_view(view.settings)] if view.settings else []
    blocks += [line(), line(_end(view.expires_at))] if view.expires_at else []
    blocks += [] if view.in_default else [line(), line(OUTSIDE_NOTE.removeprefix(f"{OUTSIDE} "))]
    return [*blocks, *advice_of(view.advice)]


def _end(expires_at: str) -> str:
    return f"ends at {moment(expires_at)}; then the settings file decides again"


def settings_view(settings: Mapping[str, Any]) -> list[Block]:
    rows: list[list[Cell]] = [[name, setting_text(settings[name])] for name in sorted(settings)]
    return [Table(columns("setting", "value"), rows)]


def setting_text(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, float):
        return f"{value:g}"
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(shown.split())


# --- their changes ------------------------------------------------------------------------------


def changed_view(
    view: MetricView, done: str, *, before: Mapping[str, Any], dry_run: bool
) -> list[Block]:
    """As it is, or would be: what differs, the reading behind it, and the last hour with it."""
    what = f"{view.database}/{view.metric}"
    blocks: list[Block] = [outcome(done, what, dry_run=dry_run)]
    blocks += [*_differences(before, view.settings), *_read_now(view, dry_run)]
    blocks += [line(view.replay.says)] if dry_run and view.replay is not None else []
    return [*blocks, *_end_and_advice(view)]


def _read_now(view: MetricView, dry_run: bool) -> list[Block]:
    if view.now.state == "disabled":
        return [line(Said("disabled: not measured, rejects nothing", "warned"))]
    if dry_run and view.now.cause is not None:
        why = f"a probe of it gives no value: {absence_text(view.now)}"
        return [line(Said(why, "unknown"))]
    return [line("a probe of it says now:"), Readings([view.now])] if dry_run else []


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Line]:
    from headgate.present.changes import settings_changed

    changed = sorted(settings_changed(before, after, None), key=lambda one: one.setting)
    if not changed:
        return [line(Said("  nothing differs from what it was", "quiet"))]
    return [line(f"  {one.told('default')}") for one in changed]


def removed_view(removed: RemovedDoc, *, dry_run: bool) -> list[Block]:
    what = f"{removed.database}/{removed.metric}"
    return [outcome("REMOVED", what, dry_run=dry_run), *_end_and_advice(removed)]


def wide_view(view: WideMetricDoc, *, reached: str) -> list[Block]:
    """A change of a metric with a reach: what it changes, and which agents it reaches."""
    what = f"{view.database}/{view.metric} for {view.reach}"
    told = [f"  {name}: {setting_text(value)}" for name, value in view.settings.items()]
    told += [reached, view.copies.says if view.copies is not None else ""]
    told.append(view.replay.says if view.replay is not None else "")
    head = outcome(view.state.upper(), what, dry_run=view.dry_run)
    return [head, *(line(one) for one in told if one), *_end_and_advice(view)]


def _end_and_advice(changed: MetricView | RemovedDoc | WideMetricDoc) -> Iterator[Line | Note]:
    if changed.expires_at:
        yield line(Said(_end(changed.expires_at), "warned"))
    yield from advice_of(changed.advice)
