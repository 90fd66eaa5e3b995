"""A body is an answer, or an error that says why not.   body bytes → parse_answer → Answer

Fields that this version does not know are ignored; one that it needs and does not find is
an error, because a guess would have to be a yes or a no.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from headgate.client.answers import OK, Answer, MetricAnswer

# A rejection may name a long wait; it may not stop a client forever.
MAX_RETRY_AFTER_S = 3600.0


class BadAnswer(Exception):
    """The body is no answer; says what is missing or wrong. Never leaves client/."""


def parse_answer(body: bytes, databases: tuple[str, ...]) -> Answer:
    """The answer about `databases`, in the same order; BadAnswer for anything else."""
    document = parse_object(body)
    if len(databases) == 1:
        return _single(document, databases[0])
    return _batch(document, databases)


def parse_object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer(f"{len(body)} bytes that are not JSON") from None
    if not isinstance(document, dict):
        raise BadAnswer("JSON, but not an object")
    return document


def _single(document: Mapping[str, Any], database: str) -> Answer:
    verdict, admitted = _verdict(document)
    if _text(document, "database") != database:
        raise BadAnswer(f"it is about {document['database']!r}, but the check was for {database!r}")
    return Answer(
        verdict=verdict,
        admitted=admitted,
        reason=_text(document, "reason"),
        retry_after_s=_retry_after_s(document),
        utilization=_number_or_none(document, "utilization"),
        metrics=tuple(_metric(item) for item in _objects(document, "metrics")),
        database=database,
        read_only=document.get("read_only") is True,
        check_at=_address(document.get("check_at")),
        check_at_database=_address(document.get("check_at_database")),
        raw=document,
    )


def _batch(document: Mapping[str, Any], databases: tuple[str, ...]) -> Answer:
    verdict, admitted = _verdict(document)
    parts = _objects(document, "checks")
    if len(parts) != len(databases):
        raise BadAnswer(f"it holds {len(parts)} answers, and {len(databases)} were asked for")
    checks = tuple(_single(part, name) for part, name in zip(parts, databases, strict=True))
    if admitted != all(checks):
        raise BadAnswer(f"verdict {verdict}, but its parts: {', '.join(c.verdict for c in checks)}")
    return _whole(checks, verdict, _text(document, "reason"), _retry_after_s(document), document)


def merged(checks: tuple[Answer, ...]) -> Answer:
    """Answers that came one by one, as one: all must admit, and the first that does not speaks."""
    unsure = [check for check in checks if not check.admitted] or [
        check for check in checks if check.unthrottled
    ]
    first = unsure[0] if unsure else checks[0]
    waits = [check.retry_after_s for check in checks if check.retry_after_s is not None]
    raw = {"checks": [check.raw for check in checks]}
    return _whole(checks, first.verdict, first.reason, max(waits, default=None), raw)


def _whole(
    checks: tuple[Answer, ...],
    verdict: str,
    reason: str,
    retry_after_s: float | None,
    raw: Mapping[str, Any],
) -> Answer:
    shares = [check.utilization for check in checks if check.utilization is not None]
    return Answer(
        verdict=verdict,
        admitted=all(checks),
        reason=reason,
        retry_after_s=retry_after_s,
        utilization=max(shares, default=None),
        metrics=tuple(metric for check in checks for metric in check.metrics),
        checks=checks,
        read_only=any(check.read_only for check in checks),
        unthrottled=any(check.unthrottled for check in checks),
        decided="local" if all(check.decided == "local" for check in checks) else "",
        raw=raw,
    )


def _address(value: object) -> str | None:
    """Agents that know no shards do not send it."""
    return value if isinstance(value, str) and value else None


def _verdict(document: Mapping[str, Any]) -> tuple[str, bool]:
    verdict, admitted = _text(document, "verdict"), _given(document, "admitted")
    if not isinstance(admitted, bool):
        raise BadAnswer("its field 'admitted' is neither true nor false")
    if admitted != (verdict == OK):
        raise BadAnswer(f"it contradicts itself: verdict {verdict!r}, admitted {admitted}")
    return verdict, admitted


def _metric(document: Mapping[str, Any]) -> MetricAnswer:
    return MetricAnswer(
        metric=_text(document, "metric"),
        scope=_text(document, "scope"),
        state=_text(document, "state"),
        value=_number_or_none(document, "value"),
        unit=_text(document, "unit"),
        threshold=_number_or_none(document, "threshold"),
        comparison=_text(document, "comparison"),
        age_s=_seconds(document, "age_ms"),
        cause=None if _given(document, "cause") is None else _text(document, "cause"),
        detail=_text(document, "detail"),
        unavailable_for_s=_seconds(document, "unavailable_for_ms"),
    )


def _retry_after_s(document: Mapping[str, Any]) -> float | None:
    seconds = _seconds(document, "retry_after_ms")
    return None if seconds is None else min(max(0.0, seconds), MAX_RETRY_AFTER_S)


def _given(document: Mapping[str, Any], name: str) -> Any:
    if name not in document:
        raise BadAnswer(f"its field {name!r} is missing")
    return document[name]


def _text(document: Mapping[str, Any], name: str) -> str:
    value = _given(document, name)
    if not isinstance(value, str):
        raise BadAnswer(f"its field {name!r} is not text")
    return value


def _number_or_none(document: Mapping[str, Any], name: str) -> float | None:
    value = _given(document, name)
    if value is None:
        return None
    # To Python true is a number, and NaN is JSON; to us neither.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnswer(f"its field {name!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadAnswer(f"its field {name!r} is not a finite number")
    return number


def _seconds(document: Mapping[str, Any], name: str) -> float | None:
    milliseconds = _number_or_none(document, name)
    return None if milliseconds is None else milliseconds / 1000


def _objects(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    items = _given(document, name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadAnswer(f"its field {name!r} is not a list of objects")
    return items
