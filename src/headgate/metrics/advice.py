"""Advice on metrics that are valid but probably not what was meant.

Each piece of advice says what, why, and what to do instead. It never changes a setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from headgate.base.advice import Advice, Severity
from headgate.base.names import Scope
from headgate.base.units import amount_text, duration_text
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import (
    AbsencePolicy,
    Command,
    Engine,
    Http,
    MetricMode,
    MetricSpec,
    Source,
    Sql,
)

FAR = 10.0
"""A threshold this many times above or below the default is probably a mistake."""
PLAIN_ROLLUPS = ("max", "min", "sum", "mean")


class MetricLook(NamedTuple):
    """One look at a metric, for `lint --connect`."""

    database: str
    metric: str
    value: float | None
    unit: str
    threshold: str
    detail: str
    """Why there is no value, or more about it."""
    cause: str = ""
    """Why there is none, in a word of the vocabulary: `unsupported`, `failed`, …"""


_RATE_NAME = re.compile(r"(^|[_-])(qps|tps|rps|iops)($|[_-])|per_sec|_rate$")
_STATEMENT_COUNTER = re.compile(
    r"\b(questions|queries|com_\w+|handler_commit|xact_commit|xact_rollback)\b", re.IGNORECASE
)
_FROM_INNODB_TRX = ("lock_waits", "longest_lock_wait", "oldest_transaction")
_CPU_PERCENT = re.compile(r"cpu[_-]?(percent|pct|util|usage|busy)|(percent|pct)[_-]?cpu|^cpu$")


def lint_metric(
    spec: MetricSpec, raw: Mapping[str, object], engine: Engine, *, place: str | None = None
) -> list[Advice]:
    """`raw` tells what was said outright."""
    place = place or f"metrics.{spec.name}"
    return [
        *_fixed_rate(spec, place),
        *_cpu_percent(spec, place),
        *_lag_threshold(spec, place),
        *_silent_lag(spec, place),
        *_far_threshold(spec, raw, place),
        *_sampling(spec, place),
        *_timing(spec, raw, place),
        *_absence(spec, place),
        *_cached_view(spec, engine, place),
        *_pace(spec, place),
    ]


def _fixed_rate(spec: MetricSpec, place: str) -> list[Advice]:
    why = (
        "a fixed rate says nothing about health: the same rate is harmless at night and fatal "
        "during a vacuum. Measure a symptom instead: lag, threads_running, commit_delay, lock_waits"
    )
    counts = isinstance(spec.source, Sql) and _STATEMENT_COUNTER.search(spec.source.query)
    if spec.mode is MetricMode.RATE and counts:
        return [Advice(Severity.ERROR, "fixed-rate", place, f"limits statements per second; {why}")]
    if _RATE_NAME.search(spec.name):
        return [Advice(Severity.WARNING, "fixed-rate", place, f"looks like a rate limit; {why}")]
    return []


def _cpu_percent(spec: MetricSpec, place: str) -> list[Advice]:
    if not _CPU_PERCENT.search(spec.name) and not _CPU_PERCENT.search(_words(spec.source)):
        return []
    message = (
        "instantaneous CPU use jumps from 0 to 100 % on a healthy host; "
        "use loadavg, or psi_cpu (time that tasks wait for a CPU)"
    )
    return [Advice(Severity.WARNING, "cpu-percent", place, message)]


def _words(source: Source) -> str:
    match source:
        case Http(series=series):
            return series or ""
        case Command(argv=argv):
            return " ".join(argv)
        case _:
            return ""


def _lag_threshold(spec: MetricSpec, place: str) -> list[Advice]:
    if spec.name != "lag":
        return []
    if spec.threshold <= 1:
        message = (
            f"a threshold of {spec.threshold:g} s is close to the measuring error of lag at one "
            f"probe every {spec.interval_s:g} s: expect rejections on a healthy replica"
        )
    elif spec.threshold > 30:
        message = (
            f"a threshold of {spec.threshold:g} s lets replicas fall far behind before any client "
            "is throttled, and catching up then takes as long; use 30 s or less"
        )
    else:
        return []
    return [Advice(Severity.WARNING, "lag-threshold", f"{place}.threshold", message)]


def _silent_lag(spec: MetricSpec, place: str) -> list[Advice]:
    if spec.name != "lag" or spec.options.get("method") != "native":
        return []
    message = (
        "native trusts a silent connection: while the network to the primary is dead, lag reads 0 "
        "until the server notices (a minute by default). Leave it out: a heartbeat costs one "
        "single-row commit a second, while clients check"
    )
    return [Advice(Severity.WARNING, "silent-lag", f"{place}.options.method", message)]


def _far_threshold(spec: MetricSpec, raw: Mapping[str, object], place: str) -> list[Advice]:
    """A wrong unit switches the gate off, or closes it, and nothing shows it."""
    builtin = BUILTINS.get(spec.name)
    if builtin is None or spec.name == "lag" or not raw.get("threshold"):
        return []
    times = spec.threshold / builtin.threshold
    if 1 / FAR < times < FAR:
        return []
    is_, usual = (amount_text(value, spec.unit) for value in (spec.threshold, builtin.threshold))
    far = f"{times:,.0f} times above" if times > 1 else f"{1 / times:,.0f} times below"
    message = f"is {is_}, {far} the default of {usual}: check the unit"
    return [Advice(Severity.WARNING, "far-threshold", f"{place}.threshold", message)]


OVERSAMPLE = 2.5
"""Probes within the time that must be noticed, at least; up to twice as many are useful."""
MIN_INTERVAL_S = 0.01
SLOW_INTERVAL_S = 10.0
"""Of a metric without a time of its own: an incident of a minute would be seen a few times."""


def _sampling(spec: MetricSpec, place: str) -> list[Advice]:
    """Oversample 2 to 5 times, by default as well: a threshold of seconds must be noticed
    within itself, anything else within what an incident lasts."""
    is_time = spec.unit == "s" and spec.mode is MetricMode.GAUGE
    longest_s = spec.threshold / OVERSAMPLE if is_time else SLOW_INTERVAL_S
    if spec.name == "pool_usage":
        longest_s = 2.0  # A pool fills up in seconds.
    # Half a percent of room, for thresholds that are no round number. No probe is that frequent.
    if spec.interval_s <= longest_s * 1.005 or spec.threshold < MIN_INTERVAL_S:
        return []
    if is_time:
        message = (
            f"is {duration_text(spec.interval_s)}, too coarse for a threshold of "
            f"{duration_text(spec.threshold)}: a spike and its recovery pass between two probes. "
            f"Use {duration_text(longest_s / 2)} to {duration_text(longest_s)}"
        )
    else:
        message = (
            f"is {duration_text(spec.interval_s)}: it is noticed late that the metric is above its "
            f"threshold, and that it is not any more. Use {duration_text(longest_s / 2)} to "
            f"{duration_text(longest_s)}"
        )
    return [Advice(Severity.WARNING, "undersampled", f"{place}.interval_s", message)]


def _pace(spec: MetricSpec, place: str) -> list[Advice]:
    if not spec.pace or spec.scope is Scope.HOST or spec.rollup.by in PLAIN_ROLLUPS:
        return []
    message = (
        f"paces by a count of members (rollup {spec.rollup.by}), which has no values in between; "
        "pace a rollup of values (max, mean, sum), or the host's own metric"
    )
    return [Advice(Severity.WARNING, "pace", f"{place}.pace", message)]


def _timing(spec: MetricSpec, raw: Mapping[str, object], place: str) -> list[Advice]:
    advice = []
    if spec.timeout_s > spec.interval_s and "interval_s" in raw:
        message = (
            f"is {duration_text(spec.timeout_s)}, above interval_s = "
            f"{duration_text(spec.interval_s)}: a probe never starts before the last one ends, so "
            "values will come less often than interval_s says"
        )
        advice.append(Advice(Severity.WARNING, "slow-timeout", f"{place}.timeout_s", message))
    return advice


def _cached_view(spec: MetricSpec, engine: Engine, place: str) -> list[Advice]:
    if engine is not Engine.MYSQL or spec.name not in _FROM_INNODB_TRX or spec.interval_s >= 0.2:
        return []
    message = (
        f"is {duration_text(spec.interval_s)}: InnoDB refreshes its transaction table only "
        "after 100 ms without a reader, so a faster probe always reads the same old data. Use "
        "200ms or more"
    )
    return [Advice(Severity.ERROR, "cached-view", f"{place}.interval_s", message)]


def _absence(spec: MetricSpec, place: str) -> list[Advice]:
    if spec.absence is not AbsencePolicy.IGNORE:
        return []
    message = (
        "with `ignore`, a database that cannot be measured counts as healthy by this metric; "
        "prefer `hold` with a short hold_s"
    )
    return [Advice(Severity.WARNING, "absence-ignored", f"{place}.absence", message)]
