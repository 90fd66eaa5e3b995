"""What the status says, as an operator reads it at 3 a.m.   StatusDoc ──► sentences, rows, tiles

Pure. What is unhealthy comes first; every absence keeps its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.core.samples import CAUSE_MEANINGS, Cause
from headgate.wire.answers import MetricDoc
from headgate.wire.reasons import quantity
from headgate.wire.rules import EXEMPT, SUSPENDED
from headgate.wire.shard_advice import HOPELESS
from headgate.wire.starvation import STARVED
from headgate.wire.status import ClientDoc, DatabaseDoc, MetricView, StatusDoc

LOUD = (STARVED, EXEMPT, SUSPENDED, HOPELESS)
"""How advice begins that nobody is to overlook."""
LIMIT_AT = 2 / 3
"""Where in its bar a metric's threshold stands: there is room to show how far beyond it is."""
HELD_WITHIN_S = 60.0
"""A client that was refused and has not asked since then is not waiting any more."""
FAILING = ("breached", "absent")
_MEANINGS = {cause.value: meaning for cause, meaning in CAUSE_MEANINGS.items()}
_WORDS = {
    "healthy": ("healthy", "good"),
    "held": ("held: last value", "warned"),
    "ignored": ("absent, ignored", "warned"),
    "waived": ("waived", "warned"),
    "breached": ("above", "bad"),
    "absent": ("absent", "bad"),
    "disabled": ("off", ""),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """Of 100; `limit` is where the threshold stands."""

    filled: float
    limit: float
    share: float
    bad: bool


@dataclass(frozen=True, slots=True)
class MetricRow:
    database: str
    name: str
    """As history calls it: `shard/lag`."""
    metric: str
    """As its settings call it."""
    now: MetricDoc
    word: str
    kind: str
    """`good`, `warned`, `bad`, or nothing: how the word looks."""
    bar: Bar | None
    behind: str
    """Whose value it is, or why there is none."""
    meaning: str
    """What that cause is, in a sentence."""
    view: MetricView | None
    """Its settings; None where it has none here."""

    @property
    def key(self) -> str:
        return f"{self.database} {self.name}"

    @property
    def is_current(self) -> bool:
        return self.now.value is not None and self.now.state in _CURRENT

    @property
    def absent_s(self) -> float | None:
        return None if self.now.absent_for_ms is None else self.now.absent_for_ms / 1000

    @property
    def age_s(self) -> float | None:
        return None if self.now.age_ms is None else self.now.age_ms / 1000


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do: a link, or a command to copy."""

    text: str
    href: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Stands:
    """A database in one sentence."""

    database: str
    kind: str
    word: str
    since_wall_s: float | None
    for_s: float | None
    why: str
    steps: Sequence[Step] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    text: str
    loud: bool
    word: str


@dataclass(frozen=True, slots=True)
class Tile:
    count: int | None
    """None: not known."""
    label: str
    kind: str
    href: str
    why: str = ""


# --- metrics ------------------------------------------------------------------------------------


def name_of(doc: MetricDoc) -> str:
    return f"shard/{doc.metric}" if doc.scope == "shard" else doc.metric


def bar_of(value: float | None, threshold: float | None, *, bad: bool) -> Bar | None:
    if value is None or threshold is None:
        return None
    share = value / threshold if threshold > 0 else (0.0 if value <= 0 else 2.0)
    filled = min(1.0, max(0.0, share * LIMIT_AT)) * 100
    return Bar(round(filled, 1), round(LIMIT_AT * 100, 1), share, bad)


def metric_rows(
    database: DatabaseDoc, docs: Iterable[MetricDoc], views: Mapping[tuple[str, str], MetricView]
) -> list[MetricRow]:
    return [_row(database, doc, views.get((database.database, doc.metric))) for doc in docs]


def _row(database: DatabaseDoc, doc: MetricDoc, view: MetricView | None) -> MetricRow:
    word, kind = _WORDS.get(doc.state, (doc.state, ""))
    if doc.cause in _EXPECTED and doc.state == "absent":
        word, kind = doc.cause.replace("_", " "), "warned"
    bad = doc.state == "breached"
    return MetricRow(
        database=database.database,
        name=name_of(doc),
        metric=doc.metric,
        now=doc,
        word="at least" if bad and doc.comparison == ">=" else word,
        kind=kind,
        bar=bar_of(doc.value, doc.threshold, bad=bad) if doc.state in _CURRENT else None,
        behind=_behind(doc),
        meaning=_MEANINGS.get(doc.cause or "", ""),
        view=view,
    )


_CURRENT = ("healthy", "held", "breached", "waived")
"""The states in which the value is what the metric is now; else it is what it last was."""
_EXPECTED = (Cause.NEVER_READ.value, Cause.HIBERNATING.value, Cause.WARMING_UP.value)


def _behind(doc: MetricDoc) -> str:
    # What a client is told (that its question wakes it) does not hold for who looks at a page.
    return "nobody asks" if doc.cause == Cause.HIBERNATING.value else told(doc.cause, doc.detail)


def told(cause: str | None, detail: str) -> str:
    words = cause.replace("_", " ") if cause else ""
    return f"{words}: {detail}" if words and detail else words or detail


# --- the state ----------------------------------------------------------------------------------


def stands(database: DatabaseDoc, *, wall_s: float, uptime_s: float) -> Stands:
    name = database.database
    failing = [m for m in database.metrics if m.state in FAILING]
    if database.activity == "hibernating":
        rests_s = _resting_s(failing)
        since_s = None if rests_s is None else wall_s - rests_s
        return Stands(name, "", "hibernates", since_s, rests_s, _RESTS)
    if database.verdict == "OK":
        return Stands(name, "good", "admits", None, None, _nearest(database.metrics))
    healthy_s_ago = database.healthy_s_ago
    for_s = uptime_s if healthy_s_ago is None else healthy_s_ago
    why = _why(database, failing)
    if failing and all(m.cause in _FIRST for m in failing):
        return Stands(name, "warned", "starting", None, None, _starting(failing))
    if healthy_s_ago is None:
        why = f"{why}; it has admitted nothing since the agent started"
    steps = tuple(_steps(database, failing))
    return Stands(name, "bad", "refuses", wall_s - for_s, for_s, why, steps)


def _why(database: DatabaseDoc, failing: Sequence[MetricDoc]) -> str:
    """Without ages, which would change from look to look; those stand in the rows."""
    if not failing or any(m.cause in _NOBODY_SPEAKS for m in failing):
        return database.reason.removeprefix(f"{database.database}: ")
    breaches_first = sorted(failing, key=lambda m: m.state != "breached")
    return "; ".join(_obstacle(m) for m in breaches_first)


def _obstacle(doc: MetricDoc) -> str:
    words = told(doc.cause, doc.detail)
    if doc.state != "breached" or doc.value is None or doc.threshold is None:
        return f"{name_of(doc)} has no value ({words or 'no cause told'})"
    side = "at or above" if doc.comparison == ">=" else "above"
    where = f" on {words}" if words and doc.scope == "shard" and not doc.cause else ""
    behind = f" ({words})" if words and not where else ""
    value, limit = quantity(doc.value, doc.unit), quantity(doc.threshold, doc.unit)
    return f"{name_of(doc)} {value}, {side} {limit}{where}{behind}"


_NOBODY_SPEAKS = tuple(
    cause.value
    for cause in (Cause.ELSEWHERE, Cause.NO_PRIMARY, Cause.SPLIT_BRAIN, Cause.HANDING_OVER)
)
_FIRST = (Cause.NEVER_READ.value, Cause.WARMING_UP.value)
_RESTS = "nobody asks, so nothing is measured; the first check wakes it"


def _resting_s(failing: Sequence[MetricDoc]) -> float | None:
    since = [m.absent_for_ms for m in failing if m.cause == Cause.HIBERNATING.value]
    known = [ms for ms in since if ms is not None]
    return max(known) / 1000 if known else None


def _starting(failing: Sequence[MetricDoc]) -> str:
    names = ", ".join(name_of(m) for m in failing)
    return f"not yet measured: {names}; checks are refused until the first values are in"


def _nearest(metrics: Sequence[MetricDoc]) -> str:
    shares = [
        (m.value / m.threshold, m)
        for m in metrics
        if m.value is not None and m.threshold is not None and m.threshold > 0
    ]
    if not shares:
        return "no metric has a value" if metrics else "no metric judges it"
    share, nearest = max(shares, key=lambda pair: pair[0])
    value, limit = quantity(nearest.value or 0.0, nearest.unit), nearest.threshold or 0.0
    side = f"{value} of {quantity(limit, nearest.unit)}"
    return f"nearest to its threshold: {name_of(nearest)}, {side} ({share:.0%})"


def _steps(database: DatabaseDoc, failing: Sequence[MetricDoc]) -> Iterable[Step]:
    """What to do next; the most telling first."""
    name = database.database
    breached = [m for m in failing if m.state == "breached"]
    shard = database.shard
    for doc in breached:
        member = _blamed(doc, database)
        if member and shard is not None and shard.standing == "leading":
            yield Step(f"Set {member} aside", f"/databases/{name}/members/{member}")
            break
    if breached:
        yield Step("Who works there, who waits", "/clients")
        yield Step("Hold somebody back", "/rules")
    for doc in {m.cause: m for m in failing if m.state == "absent"}.values():
        yield from _about(doc, name)
    yield Step("Explain", "/explain", f"headgate explain --as CLIENT --database {name}")


def _blamed(doc: MetricDoc, database: DatabaseDoc) -> str:
    """The replica whose value it is, where one stands behind it."""
    members = database.shard.members if database.shard is not None else ()
    replicas = [m for m in members if m.role != "primary" and m.skip is None]
    if doc.scope != "shard":
        return ""
    return next((m.member for m in replicas if _has_worst(m.readings, doc)), "")


def _has_worst(readings: Iterable[MetricDoc], doc: MetricDoc) -> bool:
    return any(r.metric == doc.metric and r.value == doc.value for r in readings)


def _about(doc: MetricDoc, database: str) -> Iterable[Step]:
    cause = doc.cause or ""
    if cause in _MEANINGS:
        yield Step(f"{cause.replace('_', ' ')}: {_MEANINGS[cause]}")
    if cause in (Cause.FAILED.value, Cause.TIMED_OUT.value, Cause.INVALID.value):
        yield Step("its settings:", command=f"headgate metrics show {database} {doc.metric}")


# --- advice and tiles ---------------------------------------------------------------------------


def advice_of(status: StatusDoc) -> list[Advice]:
    """Loud ones first, in their order."""
    found = [_advice(text.removeprefix("warning ")) for text in status.advice]
    return [*(a for a in found if a.loud), *(a for a in found if not a.loud)]


def _advice(text: str) -> Advice:
    for prefix in LOUD:
        if text.startswith(prefix):
            return Advice(text.removeprefix(prefix), True, prefix.removesuffix(": "))
    return Advice(text, False, "")


def unhealthy(databases: Iterable[DatabaseDoc]) -> int:
    awake = (d for d in databases if d.activity != "hibernating")
    return sum(m.state in FAILING for d in awake for m in d.metrics)


def held(clients: Iterable[ClientDoc]) -> int:
    return sum(c.refused_for_s is not None and c.last_seen_s_ago < HELD_WITHIN_S for c in clients)


def tiles_now(status: StatusDoc) -> list[Tile]:
    bad, waiting = unhealthy(status.databases), held(status.clients)
    return [
        Tile(bad, "metrics unhealthy", "bad" if bad else "", "/#metrics"),
        Tile(waiting, "clients held", "warned" if waiting else "", "/clients"),
    ]
