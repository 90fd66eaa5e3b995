"""A database as its agent sees it, for clients that decide locally.

    DatabaseSnapshot ──SnapshotWriter──► hello, snapshot, beat (JSON) ──SnapshotReader──► Snapshot

A stream begins with `hello` and a whole snapshot; later events have only what changed: a missing
section is unchanged. Each change has a serial and the one it follows, so that a gap is seen. Beats
in between say that nothing changed.

Clocks of different hosts are never compared. Values have their ages; absolute times (the end of a
rule) come with the agent's own time of day, of which only the difference counts. `clock_s` says
when something was sent; it runs from an arbitrary moment. The reader knows when it requested the
stream, and that `hello` was not sent before that. So data that waited in a buffer while this
process was stopped does not look fresh. Nor can anything be sent after it is read: if it seems so,
our clock ran slower than the agent's, and the data is dated back. If it is more than MAX_AHEAD_S,
our clock stopped for an unknown time (a suspended host, a paused machine), and the stream is
closed.

Clients report back what they decided (encode_report).

On the standard library alone: the SDK loads this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.base import strict
from headgate.base.names import Scope
from headgate.base.strict import Malformed
from headgate.check.health import (
    FOREVER,
    Health,
    MetricStatus,
    ShardHealth,
    Window,
    health_of,
    stand,
)
from headgate.check.snapshot import Counted, DatabaseSnapshot, current_until
from headgate.metrics.model import (
    AbsencePolicy,
    Builtin,
    Comparison,
    MetricSpec,
    Rollup,
)
from headgate.metrics.samples import Absent, Cause, Instant, Sample
from headgate.rules.matching import DiceOrder, Kind, Rule, RuleBook

VERSION = 1
HELLO, SNAPSHOT, BEAT = "hello", "snapshot", "beat"
CONTENT_TYPE = "text/event-stream"
MAX_METRICS = 1024
MAX_RULES = 20_000
MAX_NAMES = 256
MAX_WINDOWS = 1024
RULES_AT_ONCE = 200
MAX_AHEAD_S = 0.5
"""Two clocks drift apart by less than this while one stream is read."""
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""For one event: 10,000 rules make about 2 MB."""
_UNNAMED = Builtin("")
"""The source of a number stays in the agent: statements may hold secrets."""

_encode = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False, ensure_ascii=False
).encode


class WrongVersion(Malformed):
    """Written by another version, which may mean other things by the same words."""


class StoodStill(Malformed):
    """Our own clock did, so that nothing that came before can be dated."""


class Snapshot(NamedTuple):
    """A view as it was received, in the reader's own time."""

    serial: int
    view: DatabaseSnapshot
    sent_s: float
    """Monotonic: the earliest time at which it can have been sent."""
    wall_ahead_s: float
    """The agent's time of day minus our monotonic clock: decides when rules end."""
    current_until_s: float
    """Monotonic: from then on a value in it is stale."""

    def now(self, mono_s: float) -> Instant:
        return Instant(mono_s, mono_s + self.wall_ahead_s)


def event(kind: str, data: str) -> bytes:
    """As Server-Sent Events have it."""
    return f"event: {kind}\ndata: {data}\n\n".encode()


def hello(clock_s: float, beat_s: float) -> bytes:
    said = {"version": VERSION, "clock_s": round(clock_s, 6), "beat_s": beat_s}
    return event(HELLO, _encode(said))


# --- writing -------------------------------------------------------------------------------


class SnapshotWriter:
    """Of one database; one for all who listen. Knows what it said last."""

    def __init__(self) -> None:
        self.serial = 0
        self._view: DatabaseSnapshot | None = None
        self._specs: Mapping[str, Any] = {}
        self._rules: dict[str, tuple[Rule, str]] = {}
        """Each rule with its encoding: usually one of thousands changes."""

    def prime(self, view: DatabaseSnapshot, now: Instant) -> Iterator[None]:
        """Encode the rules before the first change, some at a time: thousands at once would delay
        checks meanwhile."""
        for number, rule in enumerate(view.rules.rules):
            if _may_apply(rule, view.health.database, now):
                self._rules[rule.id] = (rule, _encode(_rule_doc(rule)))
            if number % RULES_AT_ONCE == RULES_AT_ONCE - 1:
                yield

    def change(self, view: DatabaseSnapshot, now: Instant) -> bytes:
        """What changed since the last call, as the next serial."""
        sections = self._sections(view, self._rules_changed(view, now), now)
        specs = _specs(view.health)
        if specs != self._specs:
            sections["specs"] = _encode({scope: _spec_docs(of) for scope, of in specs.items()})
            self._specs = specs
        self._view, after = view, self.serial
        self.serial += 1
        return self._written(sections, now, after)

    def whole(self, now: Instant) -> bytes:
        """Everything, as of the last change; for who has just come, or missed one."""
        view = self._view
        assert view is not None, "there is nothing to tell before the first change"
        rules = _rules_section((text for _, text in self._rules.values()), (), view.rules)
        sections = self._sections(view, rules, now)
        sections["specs"] = _encode({s: _spec_docs(of) for s, of in self._specs.items()})
        return self._written(sections, now, None)

    def beat(self, now: Instant) -> bytes:
        said = {"serial": self.serial, **_times(now)}
        return event(BEAT, _encode(said))

    def _written(self, sections: Mapping[str, str], now: Instant, after: int | None) -> bytes:
        head = {"version": VERSION, "serial": self.serial, "after": after, **_times(now)}
        told = [_encode(head)[:-1], *(f'"{name}":{text}' for name, text in sections.items())]
        return event(SNAPSHOT, ",".join(told) + "}")

    def _sections(self, view: DatabaseSnapshot, rules: str | None, now: Instant) -> dict[str, str]:
        state = {
            "database": view.health.database,
            "default": [standing.spec.name for standing in view.health.host.standings],
            "anonymous": view.anonymous_may_pass,
            "active_agent": view.active_agent,
            "awake": view.awake,
            "paced": sorted(view.paced),
            "fair": view.fair,
            "host": _readings(view.health.standings, now),
            "shard": _shard_doc(view.health.shard, now),
        }
        sections = {"state": _encode(state)}
        return sections if rules is None else {**sections, "rules": rules}

    def _rules_changed(self, view: DatabaseSnapshot, now: Instant) -> str | None:
        if self._view is not None and view.rules is self._view.rules:
            return None
        known, place = self._rules, view.health.database
        wanted = {rule.id: rule for rule in view.rules.rules if _may_apply(rule, place, now)}
        fresh = {
            rule_id: (rule, _encode(_rule_doc(rule)))
            for rule_id, rule in wanted.items()
            if rule_id not in known or not _same(known[rule_id][0], rule)
        }
        gone = [rule_id for rule_id in known if rule_id not in wanted]
        self._rules = {rule_id: fresh.get(rule_id) or known[rule_id] for rule_id in wanted}
        return _rules_section((text for _, text in fresh.values()), gone, view.rules)


def _times(now: Instant) -> dict[str, float]:
    return {"clock_s": round(now.mono_s, 6), "wall_s": round(now.wall_s, 6)}


def _may_apply(rule: Rule, database: str, now: Instant) -> bool:
    """The agent keeps ended rules to explain them; they apply to no client, and their end is
    nobody's retry time."""
    if rule.database not in ("", database):
        return False
    return rule.expires_at > now.wall_s or any(edge > now.wall_s for edge in rule.edges())


def _same(one: Rule, other: Rule) -> bool:
    """Most rules of a new book are the very ones of the old."""
    return one is other or one == other


def _rules_section(fragments: Iterable[str], gone: Iterable[str], book: RuleBook) -> str:
    rest = {"gone": list(gone), "suspended": sorted(book.suspended), "revision": book.revision}
    return f'{{"set":[{",".join(fragments)}],{_encode(rest)[1:]}'


def _rule_doc(rule: Rule) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "id": rule.id,
        "target": rule.target,
        "kind": rule.kind.value,
        "ratio": rule.ratio,
        "expires_at": None if rule.expires_at == FOREVER else rule.expires_at,
        "order": rule.order.value,
        "metrics": rule.metrics,
        "thresholds": dict(rule.thresholds),
        "ceiling": rule.ceiling,
        "database": rule.database,
        "windows": rule.windows,
        "created_by": rule.created_by,
        "reason": rule.reason,
        "revision": rule.revision,
    }
    return {name: value for name, value in doc.items() if name in _SAID or value != _RULE[name]}


_SAID = ("id", "target", "kind", "expires_at")
_RULE: Mapping[str, Any] = {
    "ratio": 0.0,
    "order": DiceOrder.BEFORE.value,
    "metrics": (),
    "thresholds": {},
    "ceiling": Rule("", "").ceiling,
    "database": "",
    "windows": None,
    "created_by": "",
    "reason": "",
    "revision": 0,
}

_Specs = Mapping[str, MetricSpec]


def _specs(health: Health) -> dict[str, _Specs]:
    shard = health.shard.standings if health.shard is not None else {}
    return {
        "host": {name: standing.spec for name, standing in health.standings.items()},
        "shard": {name: standing.spec for name, standing in shard.items()},
    }


def _spec_docs(specs: _Specs) -> dict[str, dict[str, Any]]:
    return {name: _spec_doc(spec) for name, spec in specs.items()}


def _spec_doc(spec: MetricSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "threshold": spec.threshold,
        "comparison": spec.comparison.value,
        "unit": spec.unit,
        "interval_s": spec.interval_s,
        "max_age_s": spec.max_age_s,
        "absence": spec.absence.value,
        "hold_s": spec.hold_s,
        "reject_for_s": spec.reject_for_s,
        "scope": spec.scope.value,
        "rollup": spec.rollup.by,
    }


def _shard_doc(shard: ShardHealth | None, now: Instant) -> dict[str, Any] | None:
    if shard is None:
        return None
    return {
        "shard": shard.shard,
        "primary": shard.primary,
        "check_at": shard.check_at,
        "check_at_database": shard.check_at_database,
        "metrics": _readings(shard.standings, now),
    }


def _readings(standings: Mapping[str, MetricStatus], now: Instant) -> dict[str, dict[str, Any]]:
    return {name: _reading_doc(standing, now.mono_s) for name, standing in standings.items()}


def _reading_doc(standing: MetricStatus, now: float) -> dict[str, Any]:
    doc: dict[str, Any] = {}
    sample, absent = standing.sample, standing.absent
    if sample is not None:
        doc |= {"value": sample.value, "age_s": round(now - sample.taken_at, 6)}
        if sample.cause is not None or sample.detail:
            doc["behind"] = [sample.cause.value if sample.cause else None, sample.detail]
    if absent is not None:
        doc["absent"] = [absent.cause.value, absent.detail]
    if standing.absent_since is not None:
        doc["absent_s"] = round(now - standing.absent_since, 6)
    if standing.breached:
        doc["breached"] = True
    if standing.valid_until != FOREVER:
        doc["valid_s"] = round(standing.valid_until - now, 6)
    return doc


# --- reading -------------------------------------------------------------------------------


class SnapshotReader:
    """Reads one stream. Malformed if it cannot be used: connect again, and check at the agent."""

    def __init__(self, asked_s: float) -> None:
        self._asked_s = asked_s
        """Monotonic: when the stream was requested."""
        self._ahead_s: float | None = None
        """Our clock minus the agent's, at least. It only ever falls: data may turn out to be older
        than it seemed, never newer."""
        self._specs: dict[str, _Specs] = {}
        self._book = RuleBook()
        self.beat_s = 1.0
        self.snapshot: Snapshot | None = None

    def take(self, kind: str, data: str, now_s: float) -> Snapshot | None:
        """The newest snapshot after this event, read at `now_s`; None before the first."""
        document = strict.loads(data)
        if kind == HELLO:
            self._greet(document)
        elif kind == SNAPSHOT:
            self.snapshot = self._changed(document, now_s)
        elif kind == BEAT and self.snapshot is not None:
            self.snapshot = self._beaten(document, self.snapshot, now_s)
        return self.snapshot

    def _greet(self, document: Mapping[str, Any]) -> None:
        _check_version(document)
        self._ahead_s = self._asked_s - strict.number(document, "clock_s")
        self.beat_s = strict.number(document, "beat_s")

    def _sent_s(self, document: Mapping[str, Any], now_s: float) -> float:
        if self._ahead_s is None:
            raise Malformed("it does not begin with a hello")
        clock_s = strict.number(document, "clock_s")
        early_s = clock_s + self._ahead_s - now_s
        if early_s > MAX_AHEAD_S:
            raise StoodStill(f"this host's clock stopped for {early_s:.1f} s")
        if early_s > 0:
            self._ahead_s = now_s - clock_s
        return min(now_s, clock_s + self._ahead_s)

    def _beaten(self, document: Mapping[str, Any], known: Snapshot, now_s: float) -> Snapshot:
        if strict.whole(document, "serial") != known.serial:
            raise Malformed(f"a beat of serial {document['serial']}, after {known.serial}")
        sent_s = self._sent_s(document, now_s)
        ahead_s = strict.number(document, "wall_s") - sent_s
        return known._replace(sent_s=sent_s, wall_ahead_s=ahead_s)

    def _changed(self, document: Mapping[str, Any], now_s: float) -> Snapshot:
        _check_version(document)
        serial, after = strict.whole(document, "serial"), document.get("after")
        known = self.snapshot
        if after is None:
            self._specs = {}
        elif known is None or after != known.serial:
            told = "nothing" if known is None else known.serial
            raise Malformed(f"a change after serial {after} does not fit onto {told}")
        sent_s = self._sent_s(document, now_s)
        self._take_specs(document)
        self._take_rules(document, whole=after is None)
        view = self._view(strict.obj(strict.given(document, "state"), "state"), sent_s)
        ahead_s = strict.number(document, "wall_s") - sent_s
        return Snapshot(serial, view, sent_s, ahead_s, current_until(view.health))

    def _take_specs(self, document: Mapping[str, Any]) -> None:
        if "specs" in document:
            specs = strict.obj(document["specs"], "specs")
            self._specs = {scope: _read_specs(specs, scope) for scope in ("host", "shard")}
        elif not self._specs:
            raise Malformed("'specs' is missing")

    def _take_rules(self, document: Mapping[str, Any], *, whole: bool) -> None:
        if "rules" not in document:
            if whole:
                raise Malformed("'rules' is missing")
            return
        section = strict.obj(document["rules"], "rules")
        suspended = strict.texts(section.get("suspended", []), "suspended", MAX_RULES)
        # Of thousands one changes, in each of a hundred clients at once.
        draft = (RuleBook() if whole else self._book).draft()
        draft.drop(strict.texts(section.get("gone", []), "gone", MAX_RULES))
        found = strict.items(strict.given(section, "set"), "set", MAX_RULES)
        draft.put([_read_rule(strict.obj(item, "a rule")) for item in found])
        if len(draft.known) > MAX_RULES:
            raise Malformed(f"{len(draft.known)} rules, at most {MAX_RULES}")
        draft.suspend(frozenset(suspended))
        self._book = draft.book(strict.whole(section, "revision", 0))

    def _view(self, state: Mapping[str, Any], sent_s: float) -> DatabaseSnapshot:
        host = self._standings(strict.given(state, "host"), Scope.HOST, sent_s)
        default = strict.texts(strict.given(state, "default"), "default", MAX_METRICS)
        health = health_of(
            strict.text(state, "database"),
            host,
            # A set of which nothing is left is not "all there is", which is what () means.
            default=default or ("",),
            shard=self._shard(state.get("shard"), sent_s),
        )
        return DatabaseSnapshot(
            health,
            self._book,
            strict.flag(state, "anonymous"),
            strict.text(state, "active_agent"),
            strict.flag(state, "awake"),
            frozenset(strict.texts(strict.given(state, "paced"), "paced", MAX_METRICS)),
            strict.flag(state, "fair"),
        )

    def _shard(self, value: Any, sent_s: float) -> ShardHealth | None:
        if value is None:
            return None
        document = strict.obj(value, "shard")
        return ShardHealth(
            strict.text(document, "shard"),
            self._standings(strict.given(document, "metrics"), Scope.SHARD, sent_s),
            strict.text(document, "primary"),
            strict.text(document, "check_at"),
            strict.text(document, "check_at_database"),
        )

    def _standings(self, value: Any, scope: Scope, sent_s: float) -> dict[str, MetricStatus]:
        readings, specs = strict.obj(value, scope.value), self._specs[scope.value]
        if readings.keys() != specs.keys():
            raise Malformed(f"readings and specs of the {scope.value} are not of the same metrics")
        return {
            name: _read_standing(strict.obj(reading, name), specs[name], scope, sent_s)
            for name, reading in readings.items()
        }


def _check_version(document: Mapping[str, Any]) -> None:
    version = strict.whole(document, "version")
    if version != VERSION:
        raise WrongVersion(f"the snapshot has version {version}, this SDK reads {VERSION}")


def _read_specs(document: Mapping[str, Any], scope: str) -> _Specs:
    found = strict.obj(strict.given(document, scope), scope)
    if len(found) > MAX_METRICS:
        raise Malformed(f"{len(found)} metrics of the {scope}, at most {MAX_METRICS}")
    return {name: _read_spec(strict.obj(item, name)) for name, item in found.items()}


def _read_spec(document: Mapping[str, Any]) -> MetricSpec:
    return MetricSpec(
        name=strict.text(document, "name"),
        source=_UNNAMED,
        threshold=strict.number(document, "threshold"),
        comparison=strict.one_of(Comparison, strict.text(document, "comparison"), "comparison"),
        unit=strict.text(document, "unit"),
        interval_s=strict.number(document, "interval_s"),
        max_age_s=strict.number(document, "max_age_s"),
        absence=strict.one_of(AbsencePolicy, strict.text(document, "absence"), "absence"),
        hold_s=strict.number(document, "hold_s"),
        # Agents before 0.2 do not send it.
        reject_for_s=strict.number({"reject_for_s": 0.0, **document}, "reject_for_s"),
        scope=strict.one_of(Scope, strict.text(document, "scope"), "scope"),
        rollup=Rollup(by=strict.text(document, "rollup")),
    )


def _read_standing(
    document: Mapping[str, Any], spec: MetricSpec, scope: Scope, sent_s: float
) -> MetricStatus:
    absent_s, valid_s = (strict.number_or_none(document, n) for n in ("absent_s", "valid_s"))
    since = None if absent_s is None else sent_s - absent_s
    sample, absent = _read_sample(document, sent_s), _read_absent(document, since or sent_s)
    readings = tuple(one for one in (sample, absent) if one is not None)
    until = FOREVER if valid_s is None else sent_s + valid_s
    standing = stand(spec, Window(readings, sample, since), scope=scope, until=until)
    breached = strict.flag(document, "breached", False)
    if breached is standing.breached:
        return standing
    # Of several readings, which the agent has and we have not.
    passes = not breached and standing.passes_until > -FOREVER
    return replace(standing, breached=breached, passes=passes)


def _read_sample(document: Mapping[str, Any], sent_s: float) -> Sample | None:
    value = strict.number_or_none(document, "value")
    if value is None:
        return None
    cause, detail = None, ""
    if "behind" in document:
        cause, detail = _cause_and_detail(document["behind"], "behind")
    return Sample(value, sent_s - strict.number(document, "age_s"), cause, detail)


def _read_absent(document: Mapping[str, Any], at: float) -> Absent | None:
    if "absent" not in document:
        return None
    cause, detail = _cause_and_detail(document["absent"], "absent")
    if cause is None:
        raise Malformed("`absent` has no cause")
    return Absent(cause, detail, at)


def _cause_and_detail(value: Any, place: str) -> tuple[Cause | None, str]:
    found = strict.items(value, place, 2)
    if len(found) != 2 or not isinstance(found[1], str):
        raise Malformed(f"{place!r} is not a cause and a detail")
    cause, detail = found
    return None if cause is None else strict.one_of(Cause, cause, place), detail


def _read_rule(document: Mapping[str, Any]) -> Rule:
    expires_at = strict.given(document, "expires_at")
    windows = document.get("windows")
    return Rule(
        id=strict.text(document, "id"),
        target=strict.text(document, "target"),
        ratio=strict.number(document, "ratio", 0.0),
        expires_at=FOREVER if expires_at is None else strict.as_number(expires_at, "expires_at"),
        kind=strict.one_of(Kind, strict.text(document, "kind"), "kind"),
        order=strict.one_of(DiceOrder, strict.text(document, "order", _RULE["order"]), "order"),
        metrics=strict.texts(document.get("metrics", []), "metrics", MAX_NAMES),
        thresholds=_read_thresholds(document.get("thresholds", {})),
        ceiling=strict.number(document, "ceiling", _RULE["ceiling"]),
        database=strict.text(document, "database", ""),
        windows=None if windows is None else _read_windows(windows),
        created_by=strict.text(document, "created_by", ""),
        reason=strict.text(document, "reason", ""),
        revision=strict.whole(document, "revision", 0),
    )


def _read_thresholds(value: Any) -> dict[str, float]:
    found = strict.obj(value, "thresholds")
    return {name: strict.as_number(limit, name) for name, limit in found.items()}


def _read_windows(value: Any) -> tuple[tuple[float, float], ...]:
    found = []
    for pair in strict.items(value, "windows", MAX_WINDOWS):
        edges = [strict.as_number(edge, "windows") for edge in strict.items(pair, "windows", 2)]
        if len(edges) != 2:
            raise Malformed("'windows' has an entry that is not a pair")
        found.append((edges[0], edges[1]))
    return tuple(found)


# --- reports -------------------------------------------------------------------------------------

# What clients decided locally, as they report it.   Ledger ──► POST /v1/reports
#
# A batch has a number and the id of its sender: one that arrives twice counts once. Only the
# standard library, because the SDK writes it; check/reporting.py reads it.

MAX_ROWS = 200
MAX_TIMES = 1_000_000_000
MAX_REASON_CHARS = 500
MAX_ROWS_BYTES = 40 * 1024
"""For the rows of one batch: with its head, a body that every agent accepts."""

_encode_ascii = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def encode_report(instance: str, batch: int, rows: Sequence[Counted]) -> bytes:
    doc = {"instance": instance, "batch": batch, "rows": [_row(row) for row in rows]}
    return _encode_ascii(doc).encode()


def fitting(rows: Sequence[Counted]) -> int:
    """How many of them, from the first on, one batch can hold; one at least."""
    size = 0
    for number, row in enumerate(rows[:MAX_ROWS]):
        size += len(_encode_ascii(_row(row)))
        if size > MAX_ROWS_BYTES and number:
            return number
    return min(len(rows), MAX_ROWS)


def _row(row: Counted) -> dict[str, Any]:
    check = row.check
    doc: dict[str, Any] = {
        "app": check.identity.text,
        "database": check.database,
        "verdict": row.verdict.value,
        "by": row.by,
        "times": min(row.times, MAX_TIMES),
        "first_s_ago": round(max(0.0, row.first_s_ago), 3),
        "last_s_ago": round(max(0.0, row.last_s_ago), 3),
    }
    if check.metrics:
        doc["metrics"] = [str(ref) for ref in check.metrics]
    if check.scope is not None:
        doc["scope"] = check.scope.value
    if check.read_threshold is not None:
        doc["threshold"] = check.read_threshold
    if row.reason:
        doc["reason"] = row.reason[:MAX_REASON_CHARS]
    return doc
