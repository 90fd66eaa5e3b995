"""Snapshots as JSON: what is read is what was written, whatever happened in between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import MetricRef, Scope, parse_identity
from headgate.base.strict import Malformed
from headgate.check.decide import judge
from headgate.check.health import Health, MetricStatus, ShardHealth, Window, health_of, stand
from headgate.check.model import Check, Decision
from headgate.check.snapshot import DatabaseSnapshot, decided
from headgate.check.snapshot_api import (
    Snapshot,
    SnapshotReader,
    SnapshotWriter,
    StoodStill,
    WrongVersion,
    hello,
)
from headgate.metrics.model import AbsencePolicy, Comparison, MetricSpec, Sql
from headgate.metrics.samples import Absent, Cause, Instant, Reading, Sample
from headgate.rules.matching import DiceOrder, Kind, Rule, RuleBook
from tests.builders import NOW, at, health, metric, sample, shard_health

OURS_S = 77.0
"""What the reader's clock shows when the agent's shows NOW."""


def split(message: bytes) -> tuple[str, str]:
    kind, data = message.decode().removesuffix("\n\n").split("\n")
    return kind.removeprefix("event: "), data.removeprefix("data: ")


class Wire:
    """A writer and a reader, and the bytes between them."""

    def __init__(self) -> None:
        self.writer = SnapshotWriter()
        self.reader = SnapshotReader(OURS_S)
        self.hear(hello(NOW.mono_s, 1.0))

    def hear(self, message: bytes, read_s: float = OURS_S + 1000) -> Snapshot | None:
        return self.reader.take(*split(message), read_s)

    def tell(self, view: DatabaseSnapshot, now: Instant = NOW) -> Snapshot:
        snapshot = self.hear(self.writer.change(view, now))
        assert snapshot is not None
        return snapshot


def opened(view: DatabaseSnapshot, now: Instant = NOW) -> tuple[Wire, Snapshot]:
    wire = Wire()
    wire.writer.change(view, now)
    snapshot = wire.hear(wire.writer.whole(now))
    assert snapshot is not None
    return wire, snapshot


LAG = metric("lag", threshold=5)
POOL = metric("pool_usage")
FINE = DatabaseSnapshot(health((LAG, 0.5), (POOL, 0.1)), RuleBook())


def test_ages_are_dated_by_the_readers_own_clock() -> None:
    view = DatabaseSnapshot(health((LAG, sample(0.5, age_s=0.75))), RuleBook())
    _, snapshot = opened(view)
    found = snapshot.view.health.standings["lag"].sample
    assert found is not None and found.taken_at == pytest.approx(OURS_S - 0.75)
    assert snapshot.current_until_s == pytest.approx(OURS_S - 0.75 + LAG.max_age_s)


def test_what_lay_in_a_buffer_is_as_old_as_it_is() -> None:
    """R18: said 4 s after the hello, it is dated 4 s after the question, whenever it is read."""
    wire, _ = opened(FINE)
    later = wire.tell(
        DatabaseSnapshot(health((LAG, sample(0.5, age_s=0.0)), (POOL, 0.1)), RuleBook()), at(4)
    )
    assert later.sent_s == pytest.approx(OURS_S + 4)


def test_nothing_is_dated_later_than_it_is_read() -> None:
    """R18: our clock runs slower than the agent's, or was stopped for a moment. What was said
    then is no fresher than now, what follows is dated alike, and rules end in time (R84)."""
    wire, _ = opened(FINE)
    beat = wire.hear(wire.writer.beat(at(10.4)), read_s=OURS_S + 10)
    assert beat is not None and beat.sent_s == OURS_S + 10
    assert beat.now(OURS_S + 10).wall_s == pytest.approx(at(10.4).wall_s)
    later = wire.hear(wire.writer.beat(at(12.4)), read_s=OURS_S + 40)
    assert later is not None and later.sent_s == pytest.approx(OURS_S + 12), "never younger again"


@pytest.mark.parametrize("change", [True, False])
def test_a_clock_that_stopped_dates_nothing(change: bool) -> None:
    """A host that slept: its values are as old as nobody here knows, so all is asked for again."""
    wire, _ = opened(FINE)
    now = at(60)
    said = wire.writer.change(FINE, now) if change else wire.writer.beat(now)
    with pytest.raises(StoodStill, match=r"stopped for 59\.0 s"):
        wire.hear(said, read_s=OURS_S + 1)


def test_a_change_says_only_what_changed() -> None:
    wire, _ = opened(FINE)
    rule = Rule("r1", "etl", 0.5, NOW.wall_s + 60)
    only_readings = wire.writer.change(FINE._replace(health=health((LAG, 7.0), (POOL, 0.1))), NOW)
    with_rule = wire.writer.change(FINE._replace(rules=RuleBook([rule])), NOW)
    assert set(json.loads(split(only_readings)[1])) & {"specs", "rules"} == set()
    assert [r["id"] for r in json.loads(split(with_rule)[1])["rules"]["set"]] == ["r1"]
    wire.hear(only_readings)
    snapshot = wire.hear(with_rule)
    assert snapshot is not None and snapshot.view.rules.rules == (rule,)


def test_of_a_thousand_rules_the_one_that_changed_is_reported() -> None:
    rules = [Rule(f"r{n}", f"c{n}", 0.5, NOW.wall_s + 60, reason="load") for n in range(1000)]
    wire, _ = opened(FINE._replace(rules=RuleBook(rules)))
    rules[7] = replace(rules[7], ratio=0.9)
    message = wire.writer.change(FINE._replace(rules=RuleBook([*rules[:500], *rules[501:]])), NOW)
    assert len(message) < 1500
    snapshot = wire.hear(message)
    assert snapshot is not None
    kept = {rule.id: rule for rule in snapshot.view.rules.rules}
    assert len(kept) == 999 and kept["r7"].ratio == 0.9 and "r500" not in kept


def test_rules_that_no_client_needs_stay_at_home() -> None:
    rules = [
        Rule("past", "etl", 0.5, NOW.wall_s - 1),
        Rule("other", "etl", 0.5, NOW.wall_s + 60, database="replica"),
        Rule("kept", "etl", 0.5, NOW.wall_s + 60, database="main"),
    ]
    _, snapshot = opened(FINE._replace(rules=RuleBook(rules)))
    assert [rule.id for rule in snapshot.view.rules.rules] == ["kept"]


def test_a_rule_ends_by_its_own_time_without_another_message() -> None:
    """R84: the agent's time of day runs on here, by our monotonic clock."""
    _, snapshot = opened(FINE._replace(rules=RuleBook([Rule("r", "etl", 1.0, NOW.wall_s + 30)])))
    check = Check(parse_identity("etl:nightly"), "main")
    fresh = health((replace(LAG, max_age_s=1e6), 0.1))
    for after_s, rule in ((29.9, "r"), (30.1, None)):
        now = snapshot.now(OURS_S + after_s)
        decision = decided(snapshot.view._replace(health=fresh), check, now=now, roll=0.5)
        assert (decision.rule.id if decision.rule else None) == rule


def test_an_agent_whose_clock_was_set_is_followed() -> None:
    """Only differences of its own clock count: set ahead by an hour, its rules end here, too."""
    wire, before = opened(FINE)
    jumped = Instant(NOW.mono_s + 1, NOW.wall_s + 3601)
    after = wire.hear(wire.writer.beat(jumped))
    assert after is not None
    assert after.wall_ahead_s - before.wall_ahead_s == pytest.approx(3600, abs=0.01)


def test_the_source_of_a_number_is_not_sent() -> None:
    spec = replace(LAG, source=Sql("SELECT secret FROM vault"))
    wire = Wire()
    assert b"secret" not in wire.writer.change(
        DatabaseSnapshot(health((spec, 0.5)), RuleBook()), NOW
    )


# --- strictness ----------------------------------------------------------------------------


def broken(**changed: Any) -> str:
    writer = SnapshotWriter()
    document = json.loads(split(writer.change(FINE, NOW))[1]) | {"after": None} | changed
    return json.dumps({name: value for name, value in document.items() if value != "drop"})


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        (broken(state="drop"), "'state' is missing"),
        (broken(specs="drop"), "'specs' is missing"),
        (broken(rules="drop"), "'rules' is missing"),
        (broken(serial="7"), "'serial' is not a whole number"),
        (broken(clock_s=None), "'clock_s' is not a number"),
        (broken(clock_s=True), "'clock_s' is not a number"),
        (broken(after=3), "does not fit onto nothing"),
        (
            broken(rules={"set": [{"id": "r", "target": "x", "kind": "ban", "expires_at": 1}]}),
            "ban",
        ),
        (broken(rules={"set": [7]}), "a rule is not an object"),
        (broken().replace('"value": 0.5', '"value": NaN'), "NaN is not a number"),
        (broken().replace('"value": 0.5', '"value": 1e999'), "not a finite number"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(data: str, told: str) -> None:
    wire = Wire()
    with pytest.raises(Malformed, match=told):
        wire.reader.take("snapshot", data, OURS_S)


def test_a_version_from_the_future_is_distinguished() -> None:
    wire = Wire()
    with pytest.raises(WrongVersion, match="the snapshot has version 2, this SDK reads 1"):
        wire.reader.take("snapshot", broken(version=2), OURS_S)
    with pytest.raises(WrongVersion):
        wire.reader.take("hello", '{"version": 2, "clock_s": 1.0, "beat_s": 1.0}', OURS_S)


def test_a_gap_is_seen() -> None:
    wire, _ = opened(FINE)
    wire.writer.change(FINE, NOW)
    with pytest.raises(Malformed, match="after serial 2 does not fit onto 1"):
        wire.tell(FINE)


def test_without_a_hello_nothing_can_be_dated() -> None:
    with pytest.raises(Malformed, match="hello"):
        SnapshotReader(OURS_S).take("snapshot", broken(), OURS_S)


@given(st.data())
def test_whatever_comes_is_taken_or_rejected(data: st.DataObject) -> None:
    """No other error than Malformed, whichever part of it is garbage."""
    document = json.loads(broken(rules={"set": [RULE_DOC], "gone": [], "revision": 1}))
    place, key = _somewhere(data, document)
    place[key] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([[]])
    )
    wire = Wire()
    try:
        wire.reader.take("snapshot", json.dumps(document), OURS_S)
    except Malformed:
        assert wire.reader.snapshot is None


RULE_DOC: Mapping[str, Any] = {
    "id": "r",
    "target": "etl",
    "kind": "thresholds",
    "expires_at": 2e9,
    "thresholds": {"lag": 1.0},
    "windows": [[1.0, 2.0]],
}


def _somewhere(data: st.DataObject, document: dict[str, Any]) -> tuple[Any, Any]:
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            return place, key
        place = inner


# --- the same decisions --------------------------------------------------------------------

METRICS = {name: metric(name) for name in ("lag", "pool_usage", "loadavg")}
DEBOUNCES = [metric("lag", debounce=text).debounce for text in ("1 of 1", "2 of 3")]
TARGETS = ("etl", "nightly", "job7", "web", "all", "etl:nightly", "job7:etl:nightly")
APPS = [parse_identity(app) for app in ("job7:etl:nightly", "web:checkout", "")]
SCOPES = (None, Scope.HOST, Scope.SHARD)


class MadeUp:
    """Worlds by the seed: hypothesis draws a number, and the rest costs little."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.one_of = self._random.choice

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in METRICS if self._random.random() < 0.4)

    def value(self) -> float:
        return self.one_of([0.0, 1.0, 5.0, round(self._random.uniform(0, 20), 2)])

    def age_s(self) -> float:
        return self.one_of([0.0, 2.5, round(self._random.uniform(0, 20), 3)])

    def window(self) -> Window:
        window = Window()
        for _ in range(self._random.randrange(4)):
            taken_at, detail = NOW.mono_s - self.age_s(), self.one_of(["", "rejected"])
            reading: Reading = Sample(self.value(), taken_at, None, detail)
            if self.one_of([False, True]):
                reading = Absent(self.one_of(list(Cause)), detail, taken_at)
            window = window.push(reading, keep=5)
        return window

    def spec(self, name: str) -> MetricSpec:
        return replace(
            METRICS[name],
            threshold=self.value(),
            comparison=self.one_of(list(Comparison)),
            absence=self.one_of(list(AbsencePolicy)),
            hold_s=self.age_s(),
            scope=self.one_of(list(Scope)),
            max_age_s=self.one_of([1.0, 2.5, 30.0]),
            debounce=self.one_of(DEBOUNCES),
        )

    def standings(self, scope: Scope) -> dict[str, MetricStatus]:
        untils = [float("inf"), float("inf"), NOW.mono_s - 1, NOW.mono_s + 1]
        return {
            name: stand(self.spec(name), self.window(), scope=scope, until=self.one_of(untils))
            for name in self.names()
        }

    def health(self) -> Health:
        shard = None
        if self.one_of([False, True]):
            ask = self.one_of(["", "http://db-b:8087"])
            shard = ShardHealth("s", self.standings(Scope.SHARD), "db-b", ask, ask and "orders")
        default = self.one_of([None, self.names()])
        return health_of("main", self.standings(Scope.HOST), default=default, shard=shard)

    def rule(self, rule_id: str) -> Rule:
        return Rule(
            rule_id,
            self.one_of(TARGETS),
            self.one_of([0.0, 0.25, 0.5, 1.0]),
            NOW.wall_s + self.one_of([-1.0, 5.0, 600.0, float("inf")]),
            self.one_of(list(Kind)),
            self.one_of(list(DiceOrder)),
            self.names(),
            {name: self.value() for name in self.names()},
            database=self.one_of(["", "", "main", "replica"]),
            windows=self.one_of([None, None, (), ((NOW.wall_s - 5, NOW.wall_s + 5),)]),
        )

    def view(self) -> DatabaseSnapshot:
        rules = [self.rule(f"r{n}") for n in range(self._random.randrange(5))]
        book = RuleBook(rules, suspended=frozenset(self.one_of([[], [], ["r0"]])))
        active = self.one_of(["", "", "", "http://active:8087"])
        return DatabaseSnapshot(self.health(), book, self.one_of([False, True]), active)

    def check(self) -> Check:
        names = [*self.names(), *self.one_of([[], [], ["nosuch"]])]
        refs = tuple(MetricRef(name, self.one_of(SCOPES)) for name in names)
        return Check(self.one_of(APPS), "main", self.one_of([(), refs]), self.one_of(SCOPES))


@given(st.integers(0, 2**32), st.floats(0, 0.999), st.sampled_from([0.0, 0.5, 3.0, 6.0, 30.0]))
def test_decisions_are_the_same_on_both_sides_of_the_wire(
    seed: int, roll: float, later_s: float
) -> None:
    """Of a whole snapshot and of a change onto another one, at once and when it has aged."""
    made = MadeUp(seed)
    first, view, check, now = made.view(), made.view(), made.check(), at(later_s)
    asked = decided(view, check, now=now, roll=roll)
    _, whole = opened(view)
    wire, _ = opened(first)
    for snapshot in (whole, wire.tell(view)):
        ours = snapshot.now(OURS_S + later_s)
        local = decided(snapshot.view, check, now=ours, roll=roll)
        assert told(local) == told(asked)
        for name, standing in view.health.standings.items():
            copy = snapshot.view.health.standings[name]
            assert judge(copy, ours).state is judge(standing, now).state


def told(decision: Decision) -> tuple[object, ...]:
    failing = [(f.ref, f.state, f.cause, f.value, f.threshold) for f in decision.failing]
    exempted = [f.ref for f in decision.exempted]
    rule = decision.rule.id if decision.rule else None
    applied = [r.id for r in decision.applied.rules]
    retry = round(decision.retry_after_s or -1, 3)
    return (
        decision.verdict,
        rule,
        applied,
        failing,
        exempted,
        retry,
        decision.check_at,
        decision.note,
    )


def test_a_shards_standpoint_crosses() -> None:
    shard = shard_health(
        (LAG, 0.5), primary="db-b", check_at="http://db-b:8087", check_at_database="orders"
    )
    _, snapshot = opened(DatabaseSnapshot(health((LAG, 0.5), shard=shard), RuleBook()))
    found = snapshot.view.health.shard
    assert found is not None
    assert (found.shard, found.primary) == (shard.shard, "db-b")
    assert (found.check_at, found.check_at_database) == ("http://db-b:8087", "orders")
