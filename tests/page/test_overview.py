"""The overview: what is read first, in each state, by whom it may be changed, and that names are
only names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.base.names import Scope
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import EVERYWHERE, Place
from headgate.changes.state import ChangeMade, CopyState
from headgate.check.answer_api import MetricDoc
from headgate.check.api import DatabaseDoc
from headgate.check.health import ShardHealth, stand
from headgate.check.model import Activity
from headgate.history.api import MetricMinuteDoc
from headgate.history.records import MetricMinute
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.page.overview import hour_seen
from headgate.page.shell import static_file
from headgate.present.shard import in_short, tree, without
from headgate.present.sparks import CAP, HEIGHT, WIDTH, spark_of
from headgate.present.status import database_state
from headgate.present.words import ADVICE, advice_of
from headgate.shard.api import MemberDoc, ShardDoc, shard_doc
from headgate.shard.keeper import NoSuchMember
from headgate.shard.model import MemberView, Pull, ShardView, Skip
from headgate.shard.topology import (
    Downstream,
    Following,
    Leading,
    Member,
    MemberReport,
    Role,
    RoleSeen,
    Standpoint,
    Unled,
)
from tests.builders import NOW, member, metric, role, shard_view, window
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, serving
from tests.page.visiting import Visitor, field_of, signed_in, text_of

EVIL = "<img src=x onerror=alert(1)>"
LAG = metric("lag", threshold=5.0, max_age_s=3600)


# --- sentences ----------------------------------------------------------------------------------


def reading(name: str = "lag", value: float | None = 0.2, **more: Any) -> MetricDoc:
    usual: dict[str, Any] = {
        "metric": name,
        "scope": "host",
        "state": "healthy",
        "value": value,
        "unit": "s",
        "threshold": 5.0,
        "comparison": ">",
        "age_ms": 120,
        "cause": None,
        "detail": "",
        "unavailable_for_ms": None,
    }
    return MetricDoc(**{**usual, **more})


def late(**more: Any) -> MetricDoc:
    return reading(value=12.4, state="breached", scope="shard", detail="db-c", **more)


def lost(cause: Cause, **more: Any) -> MetricDoc:
    return reading(state="unavailable", value=None, cause=cause.value, **more)


def idle() -> MetricDoc:
    return reading(state="idle", value=None, cause=Cause.HIBERNATING.value)


def database(*metrics: MetricDoc, **more: Any) -> DatabaseDoc:
    failing = any(m.state in ("breached", "unavailable") for m in metrics)
    usual: dict[str, Any] = {
        "database": "main",
        "engine": "postgres",
        "verdict": "THRESHOLD_EXCEEDED" if failing else "OK",
        "reason": "main: because",
        "healthy_s_ago": 240.0 if failing else 0.0,
        "metrics": metrics,
        "other_metrics": (),
    }
    return DatabaseDoc(**{**usual, **more})


def said(*metrics: MetricDoc, **more: Any) -> tuple[str, str]:
    found = database_state(database(*metrics, **more), 500.0)
    return found.word, found.says


def test_who_rejects_says_since_when_by_what_and_on_which_server() -> None:
    found = database_state(database(late(), reading("threads_running")), 500.0)
    assert (found.word, found.tone, found.for_s) == ("rejects", "bad", 240.0)
    assert found.says == "shard/lag 12.4 s, above 5 s on db-c"


def test_breaches_come_before_unavailable_metrics_and_these_have_their_cause() -> None:
    gone = lost(Cause.TIMED_OUT, name="pool_usage", detail="no answer in 0.5 s")
    _, why = said(gone, late())
    assert why == (
        "shard/lag 12.4 s, above 5 s on db-c; pool_usage has no value "
        "(timed out: no answer in 0.5 s)"
    )


def test_a_shard_that_nobody_speaks_for_is_reported_once() -> None:
    """In the words of the decision: each metric of it would say the same."""
    split = [lost(Cause.SPLIT_BRAIN, name=name, scope="shard") for name in ("lag", "bytes")]
    assert said(*split, reason="main: no agent can answer for it (split brain)")[1] == (
        "no agent can answer for it (split brain)"
    )


@pytest.mark.parametrize(
    ("metrics", "more", "word", "piece"),
    [
        ((), {}, "admits", "no metric applies to it"),
        ((reading(value=4.0), reading("x", 1.0)), {}, "admits", "lag, 4 s of 5 s (80%)"),
        ((lost(Cause.NEVER_READ),), {}, "starting", "lag not measured yet"),
        ((lost(Cause.HIBERNATING),), {"activity": "hibernating", "idle": True}, "idle", "wakes it"),
        ((late(),), {"healthy_s_ago": None}, "rejects", "nothing since the agent started"),
    ],
)
def test_each_state_has_its_name(
    metrics: tuple[MetricDoc, ...], more: dict[str, Any], word: str, piece: str
) -> None:
    found, why = said(*metrics, **more)
    assert found == word
    assert piece in why


def test_the_worst_replica_can_be_skipped_from_there() -> None:
    shard = shard_doc(
        shard_view(
            member("db-a", role(Role.PRIMARY), local=True),
            member("db-c", readings={"lag": Sample(12.4, NOW.mono_s)}),
        ),
        {"lag": LAG},
        NOW,
    )
    found = database_state(database(late(), shard=shard), 1.0)
    assert found.steps[0].href == "/databases/main/members/db-c"
    assert found.steps[0].command == "headgate shard skip main db-c --for 30m --reason TEXT"
    assert all(step.why for step in found.steps)


def test_loud_advice_comes_first() -> None:
    told = ["quiet one", "starved: etl has been rejected", "warning exempt: r3 lets web pass"]
    assert [(a.word == ADVICE, a.says[:7]) for a in advice_of(told)] == [
        (False, "etl has"), (False, "r3 lets"), (True, "quiet o"),
    ]  # fmt: skip


NOW_S = 1_772_000_000.0 // 60 * 60 + 30


def minute(ago: int, high: float | None, share: float = 0.0) -> MetricMinuteDoc:
    at = datetime.fromtimestamp(NOW_S // 60 * 60 - ago * 60, tz=UTC).isoformat()
    return MetricMinuteDoc(at, "main", "lag", 60, 0, high, high, high, share, 5.0)


def test_a_row_draws_its_hour_with_its_threshold_and_marks_what_is_beyond() -> None:
    hour = [minute(ago, 1.0) for ago in range(60, 20, -1)]
    hour += [minute(20, 400.0, 1.0), minute(19, 6.0, 0.5)]  # Then nothing for a while.
    drawn = spark_of(hour, 2.0, 5.0, "s", NOW_S)
    assert drawn is not None
    assert drawn.limit_y == pytest.approx(HEIGHT - 1 - (HEIGHT - 2) / CAP, abs=0.1)
    assert drawn.beyond == (WIDTH * 40.5 / 60,)
    assert drawn.breaches == ((WIDTH * 40 / 60, WIDTH * 2 / 60),)
    assert drawn.line.count("M") == 2 and drawn.now is not None, "a gap is no line"
    assert drawn.says == "last hour: highest 400 s, above its threshold for 90 s"


def test_what_has_no_value_draws_nothing_and_what_is_quiet_has_room() -> None:
    assert spark_of([minute(3, None)], None, 5.0, "s", NOW_S) is None
    quiet = spark_of([], 0.0, 5.0, "s", NOW_S)
    assert quiet is not None and 1 < quiet.limit_y < HEIGHT / 2
    assert "not above its threshold" in quiet.says


def test_another_threshold_is_tried_on_the_last_hour() -> None:
    minutes = [
        MetricMinuteDoc("", "main", "lag", 60, 0, high, high, high, share, 5.0)
        for high, share in ((1.0, 0.0), (6.0, 0.5), (12.0, 1.0), (None, None))
    ]
    seen = hour_seen(minutes, 12.0, at_least=False)
    assert (seen.minutes, seen.absent, seen.above_now, seen.above_then) == (4, 1, 2, 0)
    assert hour_seen(minutes, 12.0, at_least=True).above_then == 1


# --- the shard ----------------------------------------------------------------------------------


def seat(name: str, above: str | None = "db-a", **more: Any) -> MemberDoc:
    usual: dict[str, Any] = {
        "member": name,
        "url": f"https://{name}:8087",
        "here": name == "db-a",
        "role": "primary" if name == "db-a" else "replica",
        "role_detail": "",
        "term": 3,
        "upstream": "",
        "upstream_member": None if name == "db-a" else above,
        "bytes_behind": None,
        "labels": {},
        "activity": "awake",
        "reachable": True,
        "problem": "",
        "unreachable_for_s": None,
        "reported_s_ago": 0.1,
        "joined_s_ago": None,
        "checked_s_ago": 1.0,
        "clock_ahead_s": None,
        "skip": None,
        "readings": [reading()],
        "skipped_metrics": {},
        "skip_kinds": {},
        "hopeless": [],
    }
    return MemberDoc(**{**usual, **more})


def shard(*members: MemberDoc) -> ShardDoc:
    return ShardDoc(
        "s",
        "main",
        "db-a",
        "leading",
        "db-a",
        None,
        3,
        None,
        "",
        None,
        members,
        (),
        0.25,
        7,
        (),
        (),
    )


def test_members_hang_below_the_one_they_replicate_from() -> None:
    doc = shard(seat("db-d", "db-b"), seat("db-b"), seat("db-a"), seat("db-c"))
    assert [(row.member.member, row.depth, row.is_last) for row in tree(doc)] == [
        ("db-a", 0, True), ("db-b", 1, False), ("db-d", 2, True), ("db-c", 1, True),
    ]  # fmt: skip


def test_a_hopeless_replica_is_marked_and_counted() -> None:
    """B9"""
    why = {"lag": "hopeless, skipped 5 min ago"}
    doc = shard(seat("db-a"), seat("db-b", skipped_metrics=why, hopeless=["lag"]))
    rows = tree(doc)
    [row] = [row for row in rows if row.member.member == "db-b"]
    assert (row.word, row.tone) == ("hopeless", "bad")
    assert "skipped for lag: hopeless, skipped 5 min ago" in [note.text for note in row.notes]
    assert "1 hopeless: db-b" in in_short(doc, rows)


def test_a_replica_without_a_metric_that_none_can_have_is_healthy() -> None:
    """A12: a standby takes no commits. Without lag it is not."""
    gap: dict[str, Any] = {"state": "unavailable", "value": None, "cause": "unsupported"}
    for name, word in (("commit_delay", "healthy"), ("lag", "unavailable")):
        readings = [reading("pool_usage"), reading(name, **gap)]
        skipped_metrics: dict[str, Any] = {"skipped_metrics": {name: "no such"}}
        skipped_metrics["skip_kinds"] = {name: "unsupported"}
        doc = shard(seat("db-a"), seat("db-b", readings=readings, **skipped_metrics))
        [row] = [row for row in tree(doc) if row.member.member == "db-b"]
        assert row.word == word
        assert any("skipped for" in note.text for note in row.notes) == (name == "lag")
        assert any(name in told for told in without(doc, "db-b")) == (name == "lag")


def test_nobody_is_lost_or_listed_twice_where_two_replicate_from_each_other() -> None:
    doc = shard(seat("db-a"), seat("db-b", "db-c"), seat("db-c", "db-b"), seat("db-d", "gone"))
    names = [row.member.member for row in tree(doc)]
    assert sorted(names) == ["db-a", "db-b", "db-c", "db-d"]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "healthy"),
        ({"readings": [reading(state="breached", value=9.0)]}, "breached"),
        ({"readings": [lost(Cause.FAILED)]}, "unavailable"),
        ({"reachable": False, "problem": "no answer"}, "unreachable"),
        ({"problem": "follows somebody else"}, "not counted"),
        ({"activity": "hibernating", "readings": [lost(Cause.HIBERNATING)]}, "hibernating"),
        ({"role": None, "role_detail": "no report yet"}, "no role"),
    ],
)
def test_each_member_has_its_state(more: dict[str, Any], word: str) -> None:
    doc = shard(seat("db-a"), seat("db-b", **more))
    row = next(row for row in tree(doc) if row.member.member == "db-b")
    assert row.word == word
    assert word in ("healthy", "breached", "hibernating") or any(row.notes)
    assert word == "healthy" or "db-b" in in_short(doc, tree(doc))


def test_a_primary_is_not_blamed_for_the_lag_of_its_replicas() -> None:
    """It measures it by its own account, and it is shown with them."""
    late = reading(state="breached", value=9.0)
    doc = shard(seat("db-a", readings=[late]), seat("db-b", readings=[late]))
    assert [row.word for row in tree(doc)] == ["healthy", "breached"]
    assert in_short(doc, tree(doc)) == "1 replica; 1 breached: db-b"


def test_what_would_be_left_is_shown_before_a_member_is_skipped() -> None:
    doc = shard(
        seat("db-a", readings=[]), seat("db-b", readings=[reading(value=12.4)]), seat("db-c")
    )
    assert without(doc, "db-b") == [
        "lag is 12.4 s here; the highest of the other replicas is 0.2 s (db-c)"
    ]
    alike = shard(seat("db-a", readings=[]), seat("db-b"), seat("db-c"))
    assert without(alike, "db-c") == [
        "lag is 0.2 s here; the highest of the other replicas is 0.2 s (db-b)"
    ]
    alone = shard(seat("db-a", readings=[]), seat("db-b"))
    assert without(alone, "db-b") == ["lag is 0.2 s here; no other replica has a value"]


# --- over the listener --------------------------------------------------------------------------


@dataclass
class World:
    """The shard of main: its members' lags, and what operators set of them. Both ports at once."""

    lags: dict[str, float | None] = field(default_factory=dict)
    skips: dict[str, Skip] = field(default_factory=dict)
    standpoint: Standpoint | None = None
    unwatched: tuple[Downstream, ...] = ()
    clock: Any = None

    def reset(self) -> None:
        self.lags, self.skips = {"db-b": 0.2, "db-c": 12.4}, {}
        self.standpoint, self.unwatched = None, ()

    def view(self, database: str) -> ShardView | None:
        if database != "main":
            return None
        now = self.clock.now()
        own = _member("db-a", now.mono_s, Role.PRIMARY, None)
        others = [_member(n, now.mono_s, Role.REPLICA, lag) for n, lag in self.lags.items()]
        found = [replace(one, skip=self.skips.get(one.member.name)) for one in (own, *others)]
        point = self.standpoint or Leading("db-a", 3, now.mono_s + 60)
        return ShardView(
            "commerce/-80", "main", "db-a", point, None, tuple(found), self.unwatched, 0.25, 7
        )

    @property
    def keeper(self) -> World:
        return self

    async def answer(self, pull: Pull) -> MemberReport:
        raise AssertionError("nobody pulls here")

    def woken(self, shard: str, database: str, by: str) -> None: ...

    async def skip(
        self, database: str, member: str, *, for_s: float, reason: str, who: str, **more: Any
    ) -> ChangeMade:
        wall_s = self.clock.now().wall_s
        self.skips[member] = Skip("commerce/-80", member, wall_s + for_s, who, reason, wall_s)
        return ChangeMade(0, 1)

    async def unskip(self, database: str, member: str, *, who: str, **more: Any) -> ChangeMade:
        if self.skips.pop(member, None) is None:
            raise NoSuchMember(f"{member} is not skipped in commerce/-80")
        return ChangeMade(1, 2)

    async def hand_over(self, *_: Any, **__: Any) -> Any: ...

    async def take_back(self, *_: Any, **__: Any) -> None: ...

    async def add_peer(self, *_: Any, **__: Any) -> ChangeMade:
        return ChangeMade(0, 1)

    async def remove_peer(self, *_: Any, **__: Any) -> ChangeMade:
        return ChangeMade(1, 2)


def _member(name: str, at: float, is_a: Role, lag: float | None) -> MemberView:
    above = "" if is_a is Role.PRIMARY else "1"
    seen = RoleSeen(is_a, at, term=3, server_id="1" if not above else name, upstream_id=above)
    report = MemberReport(name, at, seen, url=f"https://{name}:8087", checked_s_ago=3.0)
    readings = {} if lag is None else {"lag": Sample(lag, at)}
    known = Member(name, f"https://{name}:8087", not above, report)
    return MemberView(known, "", None, readings, {}, {}, (), None)


WORLD = World()


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    plan = Plan(shards=WORLD)
    with serving(LOOPS["asyncio"], tmp_path_factory.mktemp("overview"), plan) as served:
        WORLD.clock = served.clock
        yield served


@pytest.fixture
def served(_served: Served) -> Served:
    WORLD.reset()
    _served.views.parts = replace(
        _served.views.parts, shards=None, exchange=None, demands=_served.demands
    )
    _served.call(_served.board.set_shard, "main", None)
    _served.call(_awake, _served)
    _served.reset()
    return _served


def _awake(served: Served) -> None:
    for demand in served.demands.by_database.values():
        demand.wake(served.clock.now().mono_s)


@pytest.fixture
def operator(served: Served) -> Visitor:
    return signed_in(served, OPERATOR)


def in_a_shard(served: Served, lag_s: float = 12.4, **more: Any) -> None:
    for name, value in more.items():
        setattr(WORLD, name, value)
    sample = Sample(lag_s, served.clock.now().mono_s, None, "db-c")
    health = ShardHealth("commerce/-80", {"lag": stand(LAG, window(sample), scope=Scope.SHARD)})
    served.views.parts = replace(served.views.parts, shards=WORLD)
    served.call(served.board.set_shard, "main", health)


def activity(served: Served) -> str:
    found: str = served.ask("GET", "/v1/status").json["databases"][0]["activity"]
    return found


def seen(served: Served) -> str:
    return text_of(Visitor(served).get("/overview/now"))


def test_a_metric_that_was_set_for_all_and_is_not_valid_here_is_reported(served: Served) -> None:
    wrong = {"settings": {"threshold": -1}}
    item = Change(ChangeKind.METRIC, "main/lag@fleet", EVERYWHERE, wrong, 1, 0.0, "ops")
    places = (Place(database="main"),)
    served.run_there(lambda: served.book.follow([item], places, whole=True))
    assert "Not in force here: metric main/lag@fleet on main:" in seen(served)
    served.run_there(lambda: served.book.follow([], places, whole=True))
    assert "Not in force here" not in seen(served)


def test_what_is_unhealthy_comes_first(served: Served) -> None:
    in_a_shard(served)
    text = text_of(Visitor(served).get("/"))
    assert "✗ main rejects since" in text
    assert "shard/lag 12.4 s, above 5 s on db-c" in text
    assert (
        text.index("main rejects")
        < text.index("replica admits")
        < text.index("1 metrics unhealthy")
    )
    assert "1 unreachable" not in text
    assert "2 replicas; 1 breached: db-c" in text


def test_nothing_configured_says_what_to_put_where(tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("bare")
    with serving(LOOPS["asyncio"], folder, Plan(databases=())) as bare:
        text = text_of(Visitor(bare).get("/"))
    assert "No database is watched yet" in text
    assert '[databases.main] engine = "postgres" dsn =' in text
    assert "metrics unhealthy" in text


@pytest.mark.parametrize(
    ("cause", "piece"),
    [
        (Cause.TIMED_OUT, "timed out: no answer in 0.5 s"),
        (Cause.NEVER_READ, "threads_running not measured yet"),
        (Cause.REPLICATION_BROKEN, "replication broken"),
    ],
)
def test_an_unavailable_metric_shows_its_cause_and_never_0(
    served: Served, cause: Cause, piece: str
) -> None:
    """R151"""
    served.lose("threads_running", cause, "no answer in 0.5 s")
    reply = Visitor(served).get("/overview/now")
    assert piece in text_of(reply)
    assert "– was 3" in text_of(reply)
    row = reply.body.decode().split('id="metric-main-threads_running"')[1].split("</tr>")[0]
    assert 'data-value=""' in row, "the chart has a gap there"


def test_looking_does_not_wake_and_anybody_may_wake(served: Served) -> None:
    """R58"""
    in_a_shard(served, 0.1)

    def rest() -> None:
        served.demands.by_database["main"].state = Activity.HIBERNATING

    served.call(rest)
    for name in ("threads_running", "pool_usage"):
        served.lose(name, Cause.HIBERNATING, "no checks")
    stranger = Visitor(served)
    assert "main idle The next check wakes it (about 1 s)" in text_of(stranger.get("/"))
    assert activity(served) == "hibernating"
    reply = stranger.post("/databases/main/wake", script=True)
    assert "main is awake" in text_of(reply)
    assert reply.headers["hx-trigger"] == "changed"
    assert activity(served) == "awake"
    assert stranger.post("/databases/main/wake").headers["location"] == "/", "without a script"


@pytest.mark.parametrize(
    ("point", "piece"),
    [
        (Following("db-b", "https://db-b:8087"), "following db-b"),
        (Following("db-b", ""), "Its address is not known here"),
        (Unled(Absent(Cause.SPLIT_BRAIN, "db-a and db-b both say so", 0.0)), "both say so"),
    ],
)
def test_where_another_or_nobody_speaks_for_the_shard(
    served: Served, point: Standpoint, piece: str
) -> None:
    in_a_shard(served, 0.1, standpoint=point)
    assert piece in seen(served)


def test_twenty_replicas_and_one_that_nobody_watches(served: Served) -> None:
    lags: dict[str, float | None] = {f"db-{n:02}": n / 10 for n in range(20)}
    in_a_shard(served, 1.9, lags=lags, unwatched=(Downstream("db-z", "10.0.0.9"),))
    text = seen(served)
    assert "20 replicas; 1 not watched" in text
    assert all(name in text for name in lags)
    assert "no agent answers for it, so its lag counts nowhere" in text


class Copied:
    def copies(self, shard: str) -> dict[str, CopyState]:
        has_not = CopyState(False, None, "does not answer")
        return {"db-b": CopyState(True, 1.0, ""), "db-c": has_not}


def test_the_list_of_changes_says_who_has_a_copy(served: Served) -> None:
    in_a_shard(served)
    assert "have a copy" not in text_of(Visitor(served).get("/changes"))
    served.views.parts = replace(served.views.parts, exchange=Copied())
    told = "1 of 2 replicas have a copy of what is set for commerce/-80; db-c: does not answer."
    assert told in text_of(Visitor(served).get("/changes"))


def test_names_are_only_names(served: Served) -> None:
    in_a_shard(served, lags={EVIL: 9.0}, unwatched=(Downstream(EVIL, EVIL),))
    served.lose("threads_running", Cause.FAILED, EVIL)
    body = Visitor(served).get("/").body.decode()
    assert EVIL not in body
    assert "&lt;img src=x" in body


def test_without_a_script_the_page_reloads_itself(served: Served) -> None:
    body = Visitor(served).get("/").body.decode()
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in body
    assert "Charts are drawn by a script" in body


def test_nothing_is_styled_or_run_in_the_page_itself(served: Served) -> None:
    in_a_shard(served)
    body = Visitor(served).get("/").body.decode()
    assert " style=" not in body and "<style" not in body and "hx-on" not in body
    assert "<script>" not in body


def test_its_files_take_nothing_from_elsewhere() -> None:
    for name in ("overview.js", "overview.css"):
        text = static_file(name)[0].decode()
        assert "http://" not in text and "https://" not in text and "url(" not in text
        assert "innerHTML" not in text and "eval(" not in text


# --- changing -----------------------------------------------------------------------------------

THRESHOLD = "/databases/main/metrics/threads_running"


def threshold(served: Served, metric: str = "threads_running") -> float:
    found = served.ask("GET", f"/v1/databases/main/metrics/{metric}").json
    return float(found["now"]["threshold"])


def test_a_threshold_is_tried_set_and_put_back_by_name(served: Served, operator: Visitor) -> None:
    form = operator.get(THRESHOLD, script=True)
    fields = {"revision": field_of(form, "revision"), "threshold": "2"}
    minute = int(served.clock.now().wall_s // 60) - 5
    kept = MetricMinute(minute, "main", "threads_running", 60, 0, 0, 180.0, 3.0, 3.0, 100.0)
    served.run_there(lambda: served.store.history.add_metric_minutes([kept]))
    tried = text_of(operator.post(f"{THRESHOLD}/preview", fields, script=True))
    assert "100 → 2" in tried and "rejects" in tried
    assert (
        "Of the last 1 minute in history, 0 had rejections by it; with 2 it would have been 1"
        in tried
    )
    assert threshold(served) == 100, "nothing has changed by looking"
    done = operator.post(THRESHOLD, fields, script=True)
    assert "It is 2 now; it was 100" in text_of(done)
    assert "headgate metrics revert main threads_running" in text_of(done)
    assert threshold(served) == 2
    assert "threads_running 3, above 2" in seen(served)
    stale = operator.post(THRESHOLD, fields, script=True)
    assert stale.status == 412, "somebody else's change is not overwritten unseen"
    [entry, *_] = served.ask("GET", "/v1/audit?limit=5").json["audit"]
    assert entry["who"].startswith("ops") and "threads_running" in entry["target"]
    form = operator.get(THRESHOLD, script=True)
    again = operator.post(
        f"{THRESHOLD}/revert", {"revision": field_of(form, "revision")}, script=True
    )
    assert "It is 100 now; it was 2" in text_of(again)
    assert threshold(served) == 100


def test_a_higher_threshold_says_that_it_ends(served: Served, operator: Visitor) -> None:
    """R155"""
    form = operator.get(THRESHOLD, script=True)
    fields = {"revision": field_of(form, "revision"), "threshold": "300"}
    tried = text_of(operator.post(f"{THRESHOLD}/preview", fields, script=True))
    assert "after 1 h" in tried and "threshold=300" in tried
    done = text_of(operator.post(THRESHOLD, fields, script=True))
    assert "It ends at" in done and "main threads_running --for never" in done
    form = operator.get(THRESHOLD, script=True)
    assert "Ends at" in text_of(form)
    revision = {"revision": field_of(form, "revision")}
    operator.post(f"{THRESHOLD}/revert", revision, script=True)
    assert "Ends at" not in text_of(operator.get(THRESHOLD, script=True))


@pytest.mark.parametrize("given", ["", "many", "-1", "nan", "1e999", "5s", "80%"])
def test_a_threshold_that_is_none_is_rejected_with_the_reason(
    served: Served, operator: Visitor, given: str
) -> None:
    form = operator.get(THRESHOLD, script=True)
    fields = {"revision": field_of(form, "revision"), "threshold": given}
    reply = operator.post(f"{THRESHOLD}/preview", fields, script=True)
    assert reply.status in (400, 422)
    assert 'role="alert"' in reply.body.decode() and "threshold" in text_of(reply)
    assert field_of(reply, "revision") == fields["revision"], "the form is still there"
    assert threshold(served) == 100


def test_a_viewer_sees_why_the_form_is_shut(served: Served) -> None:
    viewer = signed_in(served, VIEWER)
    assert "eve may look, not change" in text_of(viewer.get("/"))
    form = viewer.get(THRESHOLD)
    assert form.body.count(b"disabled") >= 2
    fields = {"revision": field_of(form, "revision"), "threshold": "2"}
    assert viewer.post(THRESHOLD, fields).status == 403
    assert Visitor(served).post(THRESHOLD, fields).status in (401, 403)
    assert threshold(served) == 100


def test_a_form_of_another_sign_in_changes_nothing(served: Served, operator: Visitor) -> None:
    operator.csrf = "wrong"
    assert operator.post(THRESHOLD, {"revision": "0", "threshold": "2"}).status == 403
    assert threshold(served) == 100


def test_a_member_is_skipped_and_counted_again(served: Served, operator: Visitor) -> None:
    in_a_shard(served)
    path = "/databases/main/members/db-c"
    form = text_of(operator.get(path, script=True))
    assert "lag is 12.4 s here; the highest of the other replicas is 0.2 s (db-b)" in form
    fields = {"for": "30m", "reason": "rebuild"}
    shown = operator.post(f"{path}/preview", fields, script=True)
    assert "db-c will not count for 30m : rebuild" in text_of(shown)
    assert WORLD.skips == {}
    done = operator.post(f"{path}/skip", fields, script=True)
    assert "db-c is skipped in commerce/-80" in text_of(done)
    assert "headgate shard unskip main db-c" in text_of(done)
    assert WORLD.skips["db-c"].who.startswith("ops")
    assert "skipped by ops" in seen(served)
    assert "Count it again" in text_of(operator.get(path, script=True))
    back = operator.post(f"{path}/count")
    assert (back.status, back.headers["location"]) == (303, path), "without a script"
    assert WORLD.skips == {}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"for": "30m", "reason": " "}, 400),
        ({"for": "8d", "reason": "x"}, 422),
        ({"for": "soon", "reason": "x"}, 400),
    ],
)
def test_a_skip_without_reason_or_end_is_rejected(
    served: Served, operator: Visitor, fields: dict[str, str], status: int
) -> None:
    in_a_shard(served)
    reply = operator.post("/databases/main/members/db-c/skip", fields, script=True)
    assert reply.status == status
    assert WORLD.skips == {}


def test_who_is_no_member_is_said_to_be_none(served: Served, operator: Visitor) -> None:
    in_a_shard(served)
    reply = operator.get("/databases/main/members/db-q")
    assert reply.status == 404
    assert "commerce/-80 has no member 'db-q'; it has: db-a, db-b, db-c" in text_of(reply)
