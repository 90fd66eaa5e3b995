"""What the status says, as an operator reads it at 3 a.m.   StatusDoc ──► sentences, rows, tiles

Pure. What is unhealthy comes first; every metric without a value keeps its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.check.api import AcknowledgedDoc, ReloadedDoc
from headgate.check.reasons import WAKES, duration, quantity
from headgate.metrics.samples import Cause
from headgate.present.clients import throttled_for
from headgate.present.metrics import (
    CURRENT,
    FAILING,
    MEANINGS,
    UNSPOKEN,
    nearest,
    obstacles,
    state_of,
    told,
)
from headgate.present.view import Block, Note, Step, Tone, outcome

if TYPE_CHECKING:
    from headgate.budgets.api import PoliciesDoc
    from headgate.check.answer_api import MetricDoc
    from headgate.check.api import DatabaseDoc, MetricView, StatusDoc, StoreDoc
    from headgate.fleet.api import FleetFollowingDoc
    from headgate.history.api import RoguesDoc, StarvationDoc
    from headgate.pacing.api import PaceDoc, SetPointDoc
    from headgate.rules.api import RulesDoc


# --- a database ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """A database in one sentence."""

    database: str
    word: str
    tone: Tone
    for_s: float | None
    says: str
    steps: Sequence[Step] = ()


def database_state(doc: DatabaseDoc, uptime_s: float) -> DatabaseState:
    name = doc.database
    failing = [m for m in doc.metrics if m.state in FAILING]
    if doc.idle:
        wake = Step("Wake it", f"headgate wake {name}")
        return DatabaseState(name, "idle", "", None, WAKES, (wake,))
    if doc.verdict == "OK":
        return DatabaseState(name, "admits", "good", None, _nearest(doc.metrics))
    if failing and all(m.cause in _FIRST for m in failing):
        return DatabaseState(name, "starting", "warned", None, _starting(failing))
    healthy_s_ago, why = doc.healthy_s_ago, _why(doc, failing)
    if healthy_s_ago is None:
        why = f"{why}; it has admitted nothing since the agent started"
    for_s = uptime_s if healthy_s_ago is None else healthy_s_ago
    return DatabaseState(name, "rejects", "bad", for_s, why, tuple(_steps(doc, failing)))


def _why(database: DatabaseDoc, failing: Sequence[MetricDoc]) -> str:
    """Without ages, which would change from look to look; those stand in the rows."""
    if not failing or any(m.cause in UNSPOKEN for m in failing):
        return database.reason.removeprefix(f"{database.database}: ")
    return obstacles(failing)


_FIRST = (Cause.NEVER_READ.value, Cause.WARMING_UP.value)
SELDOM = "idle: few checks, so measured less often"


def no_metric(database: str) -> Note:
    add = Step("add one", f"headgate metrics add {database} lag")
    return Note("no metric", "warned", "is configured here, so every check is rejected", (add,))


def _starting(failing: Sequence[MetricDoc]) -> str:
    names = ", ".join(m.name for m in failing)
    return f"{names} not measured yet; checks are rejected until the first values are in"


def _nearest(metrics: Sequence[MetricDoc]) -> str:
    found = nearest(metrics)
    if found is None or found.value is None or found.threshold is None:
        return "no metric has a value" if metrics else "no metric applies to it"
    side = f"{quantity(found.value, found.unit)} of {quantity(found.threshold, found.unit)}"
    return f"nearest to its threshold is {found.name}, {side} ({found.share:.0%})"


def _steps(database: DatabaseDoc, failing: Sequence[MetricDoc]) -> Iterable[Step]:
    """What to do next; the most telling first."""
    name = database.database
    breached = [m for m in failing if m.state == "breached"]
    shard = database.shard
    for doc in breached:
        member = _blamed(doc, database)
        if member and shard is not None and shard.state == "leading":
            skip = f"headgate shard skip {name} {member} --for 30m --reason TEXT"
            yield Step(f"Skip {member}", skip, f"/databases/{name}/members/{member}")
            break
    if breached:
        yield Step("See which clients are throttled", "headgate clients", "/clients")
        yield Step("Put a client on hold", "headgate hold CLIENT --reason TEXT", "/rules")
    for doc in {m.cause: m for m in failing if m.state == "unavailable"}.values():
        yield from _about(doc, name)
    yield Step("Explain", f"headgate explain --as CLIENT --database {name}", "/explain")


def _blamed(doc: MetricDoc, database: DatabaseDoc) -> str:
    """The replica whose value it is, where it is one replica's."""
    members = database.shard.members if database.shard is not None else ()
    if doc.scope != "shard":
        return ""
    replicas = [m for m in members if m.role != "primary" and m.skip is None]
    return next((m.member for m in replicas if _has_worst(m.readings, doc)), "")


def _has_worst(readings: Iterable[MetricDoc], doc: MetricDoc) -> bool:
    return any(r.metric == doc.metric and r.value == doc.value for r in readings)


def _about(doc: MetricDoc, database: str) -> Iterable[Step]:
    cause = doc.cause or ""
    if cause in MEANINGS:
        yield Step(f"{told(cause)}: {MEANINGS[cause]}")
    if cause in (Cause.FAILED.value, Cause.TIMED_OUT.value, Cause.INVALID.value):
        yield Step("Its settings", f"headgate metrics show {database} {doc.metric}")


# --- its pacing ---------------------------------------------------------------------------------

MAX_NAMED = 3


def pace_words(pace: PaceDoc) -> list[str]:
    """What the current allowance is, what it keeps where, and which clients wait for it."""
    by = f", limited by {pace.metric}" if pace.metric else ""
    begun = "slow start: " if pace.starting else ""
    rate = f"{pace.rate:,.0f}" if pace.rate >= 100 else f"{pace.rate:.3g}"
    kept = ", ".join(_kept(point) for point in pace.set_points)
    words = [f"{begun}{rate}/s of cost are admitted{by}, to keep {kept}"]
    if pace.clients_total:
        named = ", ".join(pace.clients[:MAX_NAMED])
        more = pace.clients_total - min(MAX_NAMED, len(pace.clients))
        words.append(f"last paced: {named}{f' and {more:,} more' if more > 0 else ''}")
    return words


def _kept(point: SetPointDoc) -> str:
    name = point.metric if point.scope == "host" else f"{point.scope}/{point.metric}"
    share = point.set_point / point.threshold if point.threshold else 0.0
    now = "" if point.value is None else f", now {quantity(point.value, point.unit)}"
    return (
        f"{name} near {quantity(point.set_point, point.unit)} ({share:.0%} of its threshold{now})"
    )


# --- its metrics --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricRow:
    database: str
    now: MetricDoc
    word: str
    tone: Tone
    behind: str
    """Whose value it is, or why there is none."""
    meaning: str
    """What that cause is, in a sentence."""
    view: MetricView | None
    """Its settings; None where it has none here."""

    @property
    def is_current(self) -> bool:
        return self.now.value is not None and self.now.state in CURRENT

    @property
    def absent_s(self) -> float | None:
        return None if self.now.unavailable_for_ms is None else self.now.unavailable_for_ms / 1000

    @property
    def age_s(self) -> float | None:
        return None if self.now.age_ms is None else self.now.age_ms / 1000


def metric_rows(
    database: DatabaseDoc, docs: Iterable[MetricDoc], views: Mapping[tuple[str, str], MetricView]
) -> list[MetricRow]:
    return [_row(database, doc, views.get((database.database, doc.metric))) for doc in docs]


def _row(database: DatabaseDoc, doc: MetricDoc, view: MetricView | None) -> MetricRow:
    return MetricRow(
        database.database,
        doc,
        *state_of(doc),
        behind="no checks" if doc.state == "idle" else told(doc.cause, doc.detail),
        meaning=MEANINGS.get(doc.cause or "", ""),
        view=view,
    )


# --- the agent ----------------------------------------------------------------------------------


def agent_notes(status: StatusDoc) -> list[Note]:
    """What is wrong with the agent itself."""
    notes = []
    if status.state_lost:
        notes.append(Note("state lost", "bad", status.state_lost))
    if status.settings_fault:
        says = "The last reload was rejected, and the earlier settings stay in force"
        notes.append(Note("settings rejected", "bad", f"{says}: {status.settings_fault}"))
    if not status.store.writable:
        notes.append(store_note(status.store))
    if status.fleet is not None and (status.fleet.kept or status.fleet.stale_for_s is not None):
        notes.append(fleet_note(status.fleet))
    return notes


def store_note(store: StoreDoc) -> Note:
    if store.writable:
        return Note(f"store {store.name}", "", "writable")
    since = f" for {duration(store.fault_for_s)}" if store.fault_for_s is not None else ""
    fault = f": {store.fault}" if store.fault else ""
    waiting = f", and {store.tallies_waiting:,} counts wait" if store.tallies_waiting else ""
    says = f"{store.name} cannot be written{since}{fault}. Checks go on; nothing can be changed"
    return Note("store not writable", "bad", f"{says} meanwhile{waiting}.")


def fleet_note(fleet: FleetFollowingDoc) -> Note:
    tone: Tone = "bad" if fleet.kept else "warned" if fleet.stale_for_s is not None else ""
    return Note("fleet", tone, fleet.says)


def reloaded_view(done: ReloadedDoc) -> list[Block]:
    told = f"{done.settings}: {', '.join(done.databases) or 'no database'}"
    if done.waiting:
        sections = ", ".join(f"[{section}]" for section in done.waiting)
        told = f"{told}; changes in {sections} wait for a restart"
    return [outcome("RELOADED", told)]


def acknowledged_view(done: AcknowledgedDoc) -> list[Block]:
    told = [*(done.notes or ["a new state is begun, with nothing set"])]
    told += [f"renamed: {', '.join(done.moved)}"] if done.moved else []
    return [outcome("ACKNOWLEDGED", "; ".join(told))]


@dataclass(frozen=True, slots=True)
class Tile:
    count: int | None
    """None: not known."""
    label: str
    tone: Tone
    href: str
    why: str = ""


def told_tiles(tiles: Sequence[Tile]) -> tuple[list[Tile], str]:
    """Those with a number, and the rest in one line: `no clients throttled, no rules in force`."""
    shown = [tile for tile in tiles if tile.count]
    none = [f"no {tile.label}" for tile in tiles if tile.count == 0]
    unknown = [f"{tile.label} not known ({tile.why})" for tile in tiles if tile.count is None]
    quiet = ", ".join([*none, *unknown])
    return shown, quiet[:1].upper() + quiet[1:]


def tiles_now(status: StatusDoc) -> list[Tile]:
    bad = sum(m.state in FAILING for d in status.databases for m in d.metrics)
    throttled = sum(throttled_for(client) is not None for client in status.clients)
    return [
        Tile(bad, "metrics unhealthy", "bad" if bad else "", "/#metrics"),
        Tile(throttled, "clients throttled", "warned" if throttled else "", "/clients"),
    ]


def rules_in_force(doc: RulesDoc) -> tuple[int, Tone, str]:
    in_force = [rule for rule in doc.rules if rule.state == "in_force"]
    suspended = sum(rule.state == "suspended" for rule in doc.rules)
    why = f"{suspended} suspended" if suspended else ""
    return len(in_force), "warned" if suspended or doc.rejected else "", why


def clients_starved(doc: StarvationDoc) -> tuple[int, Tone, str]:
    alarming = [one for one in doc.starved if one.alarming]
    return len(alarming), "bad" if alarming else "", ", ".join(s.client for s in alarming[:3])


def rogue_clients(doc: RoguesDoc) -> tuple[int, Tone, str]:
    why = ", ".join(suspect.application or suspect.user for suspect in doc.suspects[:3])
    return len(doc.suspects), "warned" if doc.suspects else "", why


def budgets_enforcing(doc: PoliciesDoc) -> tuple[int, Tone, str]:
    budgets = [budget for policy in doc.databases for budget in policy.budgets]
    enforcing = [budget for budget in budgets if budget.state == "enforcing"]
    full = [b.name for b in enforcing if (b.fill or 0.0) >= 1.0]
    faults = [p.database for p in doc.databases if p.read_fault or p.rejection]
    if faults:
        return len(enforcing), "bad", f"not in force as set on {', '.join(faults[:3])}"
    return len(enforcing), "warned" if full else "", f"{len(full)} full" if full else ""
