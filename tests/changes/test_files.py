"""Files of what was set at one agent: every kind, validated by its own room, exported and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.policy import Mode
from headgate.changes.book import ChangeBook
from headgate.changes.file_format import SECTIONS, read_document, to_json, to_toml
from headgate.changes.model import Change
from headgate.changes.reach import HERE, Place, Reach, parse_reach
from headgate.changes.state import Copies, What, item_bytes, stands
from headgate.errors import Conflict, HeadgateError, InvalidSettings
from headgate.metrics.reaching import WideMetrics
from tests.budgets.budget_world import ETL
from tests.changes import verbs
from tests.changes.changebook_world import book_on
from tests.changes.changes_world import PEER, ChangesWorld
from tests.changes.fleet_items import budget_item
from tests.changes.own_world import keep, set_here
from tests.fixtures.memory_log import MemoryLog
from tests.shard.shard_world import SHARD, url

FILE = f"""
[[rules]]
id = "etl-slow"
target = "etl"
ratio = 0.9
for = "2h"

[[budgets]]
database = "main"
name = "etl"
rate = 30
unset = ["capacity"]

[[budgets]]
database = "main"
name = "exports"
rate = 10
rules = [{{ match = {{ username = "exports" }} }}]

[[budgets]]
database = "main"
name = "web"
removed = true

[[metrics]]
database = "main"
metric = "lag"
threshold = "9s"
expires_at = "never"

[[metrics]]
database = "main"
metric = "threads_running"
removed = true
for = "2h"

[[peers]]
shard = "{SHARD}"
member = "db-x"
url = "{url("db-x")}"
database = "main"

[[skips]]
shard = "{SHARD}"
member = "db-x"
reason = "rebuilt"
for = "1h"
"""


@pytest.fixture
async def world() -> AsyncIterator[ChangesWorld]:
    world = await ChangesWorld().start()
    yield world
    await world.close()


async def faults(world: ChangesWorld, **sections: Any) -> dict[str, str]:
    with pytest.raises(InvalidSettings) as rejected:
        await world.apply({name: [entry] for name, entry in sections.items()})
    assert world.book.held.n == 0, "nothing was changed"
    return {fault.place: fault.message for fault in rejected.value.faults}


# --- applied -----------------------------------------------------------------------------------


async def test_a_file_is_one_revision_and_in_force_when_it_is_acknowledged(
    world: ChangesWorld,
) -> None:
    change = await world.apply(read_document(FILE))
    assert (change.after_n, change.revisions) == (1, 1)
    assert [rule.target for rule in world.rules.book.rules] == ["etl"]
    assert world.metric_book.database("main").entry("lag").spec.threshold == 9
    assert world.metric_book.database("main").removed() == ["threads_running"]
    budgets = {raw["name"]: raw for raw in world.budgets.of("main").edition.document["budgets"]}
    assert sorted(budgets) == ["etl", "exports"]
    assert (budgets["etl"]["rate"], "capacity" in budgets["etl"]) == (30, False)
    assert budgets["etl"]["rules"], "of which the file says nothing"
    assert "db-x" in world.shards.each[SHARD].remotes
    assert [skip.member for skip in world.shards.keeper.skips("main")] == ["db-x"]


async def test_differences_are_reported_kind_by_kind(world: ChangesWorld) -> None:
    change = await world.apply(read_document(FILE), dry_run=True)
    assert [one.line for one in change.differences] == [
        "rule etl-slow: added",
        "budget main/etl: set",
        "budget main/exports: added",
        "budget main/web: removed",
        "metric main/lag: set",
        "metric main/threads_running: removed",
        f"peer {SHARD} db-x: added",
        f"skip {SHARD} db-x: added",
    ]
    await world.apply(read_document(FILE))
    other = FILE.replace('"9s"', '"8s"').replace("rate = 30", "rate = 40")
    again = await world.apply(read_document(other.replace('for = "2h"\n', "")), dry_run=True)
    assert [one.line for one in again.differences[:2]] == [
        "budget main/etl: rate 30% → 40%",
        "metric main/lag: threshold 9s → 8s",
    ]
    back = await world.apply({}, prune=True, dry_run=True)
    assert "metric main/lag: reverted to the settings file" in [
        one.line for one in back.differences
    ]
    assert {one.what for one in back.differences} == {What.TAKEN_OUT}


async def test_prune_leaves_what_the_settings_file_says(world: ChangesWorld) -> None:
    await world.apply(read_document(FILE))
    kept = await world.apply({"rules": []})
    assert kept.changes == () and "not-in-file" in [one.code for one in kept.advice]
    await world.apply({}, prune=True)
    assert await world.exported() == {section: [] for section in SECTIONS}
    assert world.rules.entries()[0][0].spec.lifted_by == "ada"
    assert world.metric_book.database("main").entry("lag").spec.threshold == 5
    names = [budget.name for budget in world.budgets.of("main").edition.policy.budgets]
    assert names == ["etl", "web"]
    assert sorted(world.shards.each[SHARD].remotes) == ["db-b"]
    assert world.shards.keeper.skips("main") == []


async def test_a_change_is_audited_as_if_it_were_made_one_by_one(world: ChangesWorld) -> None:
    await world.apply(read_document(FILE))
    audit = {(one.action, one.target): one for one in await world.store.audit()}
    assert {action for action, _ in audit} == {
        "rule.set",
        "budget.set",
        "metric.set",
        "metric.remove",
        "peer.set",
        "skip.set",
    }
    lag = audit["metric.set", "main/lag"]
    assert (lag.who, lag.before, lag.after) == ("ada", None, {"threshold": "9s"})


async def test_an_end_that_is_not_said_stays_and_a_looser_metric_ends(world: ChangesWorld) -> None:
    entry = {"database": "main", "metric": "lag", "threshold": "9s"}
    change = await world.apply({"metrics": [entry]})
    assert [advice.code for advice in change.advice] == ["ends"]
    end = world.standing("metric")["main/lag"]["expires_at"]
    await world.clock.advance(60)
    await world.apply({"metrics": [{**entry, "threshold": "8s"}]})
    assert world.standing("metric")["main/lag"]["expires_at"] == end
    await world.apply({"metrics": [{**entry, "threshold": "8s", "expires_at": "never"}]})
    assert "expires_at" not in world.standing("metric")["main/lag"]


async def test_what_says_no_more_than_the_settings_file_is_no_change(world: ChangesWorld) -> None:
    same = {"database": "main", "name": "etl", "rate": 20}
    assert (await world.apply({"budgets": [same]})).changes == ()
    await world.apply({"budgets": [{**same, "rate": 30}]})
    back = await world.apply({"budgets": [same]})
    assert [one.what for one in back.differences] == [What.TAKEN_OUT]


# --- validated by the rooms ----------------------------------------------------------------------


async def test_every_fault_is_reported_with_its_place(world: ChangesWorld) -> None:
    found = await faults(
        world,
        rules={"id": "a", "target": "etl", "ratio": 9},
        budgets={"database": "main", "name": "etl", "rate": 200},
        metrics={"database": "main", "metric": "lag", "threshold": -1},
        peers={**PEER, "url": "ftp://x"},
        skips={"shard": SHARD, "member": "db-q", "for": "90d"},
    )
    assert list(found) == [
        "rules[0].ratio",
        "budgets[0].rate",
        "metrics[0].threshold",
        "peers[0].url",
        "skips[0].member",
        "skips[0].reason",
        "skips[0].for",
    ]


async def test_no_fault_hides_another(world: ChangesWorld) -> None:
    metric = {"database": "main", "metric": "lag", "for": "soon", "threshold": -1}
    found = await faults(
        world,
        ruler={"id": "a"},
        rules={"target": "etl", "ratio": 0.5},
        metrics={**metric, "command": ["id"]},
        skips={"shard": SHARD, "member": "db-q", "for": "1h", "reason": "x"},
    )
    assert list(found) == [
        "ruler",
        "rules[0].id",
        "metrics[0].for",
        "metrics[0].command",
        "metrics[0].threshold",
        "skips[0].member",
    ]


@pytest.mark.parametrize(
    ("section", "entry", "place", "words"),
    [
        ("metrics", {"database": "x", "metric": "lag"}, "database", "configured: main"),
        ("metrics", {"database": "main", "metric": "a b"}, "metric", "a b"),
        ("metrics", {"database": "main", "metric": "lag", "bogus": 1}, "bogus", "unknown setting"),
        ("metrics", {"database": "main", "metric": "lag", "command": ["id"]}, "command", "file"),
        ("metrics", {"database": "main", "metric": "lag", "for": "x"}, "for", "must read like"),
        (
            "metrics",
            {"database": "main", "metric": "lag", "removed": True, "threshold": "1s"},
            "removed",
            "no settings",
        ),
        ("metrics", {"database": "main", "metric": "queue", "removed": True}, "removed", "no such"),
        ("metrics", {"database": "main", "metric": "lag", "removed": 1}, "removed", "must be true"),
        ("budgets", {"database": "x", "name": "a", "rate": 1}, "database", "have it: main"),
        ("budgets", {"database": "main", "name": "state", "rate": 1}, "name", "word of the API"),
        ("budgets", {"database": "main", "name": "q", "removed": True}, "removed", "neither"),
        ("budgets", {"database": "main", "name": "q", "whole": False}, "whole", "it must be whole"),
        ("budgets", {"database": "main", "name": "etl", "unset": "rate"}, "unset", "a list"),
        ("budgets", {"database": "main", "name": "etl", "at": 0}, "at", "from 1"),
        ("budgets", {"database": "main", "name": "etl", "tax": 1}, "tax", "unknown setting"),
        ("peers", {**PEER, "shard": "other"}, "shard", f"it has: {SHARD}"),
        ("peers", {**PEER, "member": "db-b"}, "member", "already"),
        ("peers", {**PEER, "member": "a b"}, "member", "member name"),
        ("peers", {**PEER, "color": "red"}, "color", "unknown setting"),
        ("peers", {"shard": SHARD, "member": "z", "database": "main"}, "url", "is missing"),
        (
            "skips",
            {"shard": SHARD, "member": "db-b", "reason": "x"},
            "expires_at",
            "either expires_at",
        ),
    ],
)
async def test_what_a_room_rejects_one_by_one_it_rejects_in_a_file(
    world: ChangesWorld, section: str, entry: dict[str, Any], place: str, words: str
) -> None:
    found = await faults(world, **{section: entry})
    assert list(found) == [f"{section}[0].{place}"]
    assert words in found[f"{section}[0].{place}"]


async def test_no_database_and_no_shard_gets_too_many_by_a_file(world: ChangesWorld) -> None:
    metrics = [
        {"database": "main", "metric": f"m{n}", "sql": "select 1", "threshold": 1}
        for n in range(63)
    ]
    peers = [{**PEER, "member": f"p{n}", "url": url(f"p{n}")} for n in range(256)]
    for section, entries in (("metrics", metrics), ("peers", peers)):
        with pytest.raises(InvalidSettings, match="at most") as rejected:
            await world.apply({section: entries})
        assert [fault.place for fault in rejected.value.faults] == [section]
    with pytest.raises(InvalidSettings) as rejected:
        await world.apply({"metrics": metrics, "peers": peers})
    assert {fault.place for fault in rejected.value.faults} == {"metrics", "peers"}
    assert world.book.held.n == 0


async def test_a_policy_that_cannot_be_as_a_whole_is_rejected(world: ChangesWorld) -> None:
    """Nobody locks out who could lift it again."""
    entry = {"database": "main", "name": "all", "mode": "enforce", "rate": 0, "rules": [{}]}
    with pytest.raises(InvalidSettings, match="locks out") as rejected:
        await world.apply({"budgets": [entry]})
    assert all(fault.place.startswith("budget main/all") for fault in rejected.value.faults)
    assert world.book.held.n == 0


async def test_secrets_are_not_exported_and_come_back_with_what_was_exported(
    world: ChangesWorld,
) -> None:
    secret = "https://ada:s3cret@stats/q?key=1"
    entry = {"database": "main", "metric": "queue", "url": secret, "pointer": "/n", "threshold": 5}
    await world.apply({"metrics": [entry]})
    document = await world.exported()
    assert "s3cret" not in str(document)
    assert (await world.apply(document)).changes == ()
    document["metrics"][0]["threshold"] = 7
    change = await world.apply(document)
    assert [one.line for one in change.differences] == ["metric main/queue: threshold 5 → 7"]
    assert world.standing("metric")["main/queue"]["settings"]["url"] == secret
    document["metrics"][0]["metric"] = "copy"
    with pytest.raises(InvalidSettings, match="placeholder of a secret"):
        await world.apply(document)


# --- reaches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", ["fleet", "shard:other", "host:db-9", "region:eu-*"])
async def test_what_reaches_further_is_for_another_log(world: ChangesWorld, reach: str) -> None:
    found = await faults(world, rules={"id": "a", "target": "etl", "ratio": 0.5, "reach": reach})
    assert "--fleet" in found["rules[0].reach"]


class Shared:
    """The agents of the shard, of which this one leads."""

    def __init__(self) -> None:
        self.led: set[str] = set()

    def is_ready(self, shards: Collection[str] = ()) -> bool:
        self.led |= set(shards)
        return True

    async def get_ready(self, shards: Collection[str] = ()) -> None:
        pass

    async def copied(self, shards: Collection[str]) -> Copies | None:
        return Copies(2, 2)

    @property
    def lead(self) -> Shared:
        return self

    def shares(self, reach: Reach) -> bool:
        return str(reach) == f"shard:{SHARD}"


async def test_what_is_for_the_shard_is_made_by_who_leads_it(world: ChangesWorld) -> None:
    """R164: without etcd, the agents of a shard share what is set for it."""
    agents, reach = Shared(), f"shard:{SHARD}"
    world.book.exchange_by(agents, lambda keys: None)
    document: Any = read_document(FILE)
    document["budgets"] = [{"name": "cap", "rate": 20}]
    document["policies"] = [{"database": "all", "mode_cap": "off"}]
    wide = {section: [{**one, "reach": reach} for one in document[section]] for section in document}
    change = await world.apply(wide)
    assert agents.led == {SHARD} and change.copies == Copies(2, 2)
    assert {item.reach for item in change.items} == {parse_reach(reach)}
    assert f"main/lag@{reach}" in world.standing("metric")
    assert f"cap@{reach}" in world.standing("budget")
    assert (await world.apply(await world.exported(), prune=True)).changes == ()
    own = {"rules": [{"id": "etl-slow", "target": "etl", "ratio": 0.1, "for": "1h"}]}
    await world.apply(own)
    assert {item.reach: (item.value or {})["ratio"] for item in _rules(world)} == {
        HERE: 0.1,
        parse_reach(reach): 0.9,
    }
    assert (await world.apply(await world.exported(), prune=True)).changes == ()
    left = {**await world.exported(), **own}
    pruned = await world.apply(left, prune=True)
    assert [(one.line.partition(",")[0]) for one in pruned.differences] == [
        f"rule etl-slow (shard:{SHARD}): taken out"
    ]


async def test_what_another_agent_of_the_shard_set_is_exported_with_its_reach(
    world: ChangesWorld,
) -> None:
    """It is in every agent's log, and may have the id of one that was set here."""
    shard, value = parse_reach(f"shard:{SHARD}"), {"target": "etl", "ratio": 0.5}
    await world.apply({"rules": [{"id": "half", **value, "for": "2h"}]})
    held = world.book.held.rule("half")
    assert held is not None and held.value is not None
    theirs = Change("rule", "half", shard, {**held.value, "ratio": 0.7}, 40, 1000.0, "bob")
    await world.book.merge(SHARD, [(theirs.key, item_bytes(theirs))], by="db-b")
    document = await world.exported()
    assert [rule.get("reach") for rule in document["rules"]] == [None, f"shard:{SHARD}"]
    assert (await world.apply(document, prune=True)).changes == ()
    n = world.book.held.n
    document["rules"][0]["ratio"] = 0.2
    assert [one.reach for one in (await world.apply(document)).differences] == [HERE]
    await world.book.rollback(n, who="ada")
    assert {item.reach: (item.value or {})["ratio"] for item in _rules(world)} == {
        HERE: 0.5,
        shard: 0.7,
    }


async def test_going_back_takes_out_nothing_of_the_shard_that_has_the_name(
    world: ChangesWorld,
) -> None:
    """Also where what was set here is forgotten by now."""
    value = {"target": "etl", "ratio": 0.5, "for": "2h"}
    await world.apply({"rules": [{"id": "half", **value}]})
    held = world.book.held.rule("half")
    assert held is not None and held.value is not None
    now_s, reach = world.clock.now().wall_s, parse_reach(f"shard:{SHARD}")
    theirs = Change("rule", "half", reach, held.value, 40, now_s, "bob")
    await verbs.lift_rule(world.book, "half", who="ada")
    await world.book.forget("rule", ["half"])
    await world.book.merge(SHARD, [(theirs.key, item_bytes(theirs))], by="db-b")
    n = world.book.held.n
    await world.apply({"rules": [{"id": "other", **value}]})
    await world.book.rollback(n, who="ada")
    assert [item.reach for item in _rules(world) if stands(item, world.clock.now().wall_s)] == [
        theirs.reach
    ]
    assert (await world.book.rollback(2, who="ada", dry_run=True)).differences[0].reach == (
        theirs.reach
    ), "what another agent has made is of this log's history, too"


def _rules(world: ChangesWorld) -> list[Change]:
    return [item for (kind, _), item in world.book.held.items.items() if kind == "rule"]


# --- a fleet's log -------------------------------------------------------------------------------


def fleet_book(world: ChangesWorld) -> ChangeBook:
    book = book_on(MemoryLog(), world.clock)
    rooms = world.book.rooms
    book.rooms |= {kind: rooms[kind] for kind in rooms if kind != "budget"}
    return book


WIDE = """
[[metrics]]
database = "*"
metric = "lag"
reach = "shard:commerce/*"
threshold = "3s"
unset = ["hold_s", "options.table"]

[[metrics]]
database = "main"
metric = "queue"
reach = "fleet"
adds = true
sql = "select 1"
threshold = 5
for = "2h"

[[metrics]]
database = "main"
metric = "threads_running"
reach = "region:eu-*"
removed = true
expires_at = "never"
"""


async def test_metrics_of_a_fleet_are_patches_of_what_each_agent_has(world: ChangesWorld) -> None:
    book = fleet_book(world)
    change = await book.apply(read_document(WIDE), who="ada")
    assert {item.id: item.value for item in change.items} == {
        "*/lag@shard:commerce/*": {
            "settings": {"threshold": "3s", "hold_s": None, "options": {"table": None}}
        },
        "main/queue@fleet": {
            "settings": {"sql": "select 1", "threshold": 5},
            "adds": True,
            "expires_at": (await book.export()).document["metrics"][1]["expires_at"],
        },
        "main/threads_running@region:eu-*": {"removed": True},
    }
    document = (await book.export()).document
    same = await book.apply(document, who="ada", prune=True)
    assert same.changes == ()
    stricter = {**document, "metrics": [{**document["metrics"][0], "threshold": "2s"}]}
    again = await book.apply(stricter, who="ada")
    assert [one.line for one in again.differences] == [
        "metric */lag@shard:commerce/*: threshold 3s → 2s"
    ]
    await book.rollback(1, who="ada")
    assert (await book.export()).document == document


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"threshold": -1}, "threshold"),
        ({"adds": "yes"}, "adds"),
        ({"unset": "hold_s"}, "unset"),
        ({"removed": True}, "removed"),
        ({"url": "https://a:…@b/"}, "url"),
        ({"database": "a b"}, "database"),
        ({"reach": "host"}, "reach"),
    ],
    ids=str,
)
async def test_what_cannot_be_set_for_a_fleet_is_reported(
    world: ChangesWorld, change: dict[str, Any], place: str
) -> None:
    entry = {"database": "main", "metric": "lag", "reach": "fleet", "threshold": "3s", **change}
    with pytest.raises(InvalidSettings) as rejected:
        await fleet_book(world).apply({"metrics": [entry]}, who="ada")
    assert [fault.place for fault in rejected.value.faults] == [f"metrics[0].{place}"]


async def test_members_are_set_for_their_own_shard(world: ChangesWorld) -> None:
    book = fleet_book(world)
    peer = {**PEER, "reach": f"shard:{SHARD}"}
    skip = {"shard": SHARD, "member": "db-x", "reason": "x", "for": "1h"}
    change = await book.apply(
        {"peers": [peer], "skips": [{**skip, "reach": peer["reach"]}]}, who="a"
    )
    assert [str(item.reach) for item in change.items] == [f"shard:{SHARD}"] * 2
    document = (await book.export()).document
    assert (await book.apply(document, who="a")).changes == ()
    with pytest.raises(InvalidSettings) as rejected:
        await book.apply({"peers": [{**peer, "reach": "fleet"}]}, who="a")
    assert [fault.place for fault in rejected.value.faults] == ["peers[0].reach"]


WIDE_DEEDS = st.tuples(
    st.sampled_from(["put", "patch", "remove", "revert"]),
    st.sampled_from(["*", "main"]),
    st.sampled_from(["lag", "threads_running"]),
    st.sampled_from(["fleet", "shard:commerce/*", "host:db-1"]),
    st.fixed_dictionaries(
        {},
        optional={
            "threshold": st.sampled_from([1, 7.5, None]),
            "hold_s": st.sampled_from([10, None]),
            "for": st.sampled_from(["90s", "never"]),
        },
    ),
)


@given(st.lists(WIDE_DEEDS, max_size=6))
def test_an_export_of_metrics_of_a_fleet_changes_nothing(deeds: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        world = await ChangesWorld().start()
        book = fleet_book(world)
        try:
            for verb, database, metric, reach, raw in deeds:
                wide = WideMetrics(world.metric_book, book.make, parse_reach(reach))
                said = {} if verb in ("remove", "revert") else {"raw": raw}
                with suppress(HeadgateError):
                    await getattr(wide, verb)(database, metric, who="ada", **said)
                exported = (await book.export()).document
                read = read_document(to_toml(exported))
                assert {**{key: [] for key in SECTIONS}, **read} == exported
                same = await book.apply(read, who="eve", prune=True, dry_run=True)
                assert same.changes == ()
        finally:
            await world.close()

    asyncio.run(play())


# --- what this version does not know -------------------------------------------------------------


async def test_what_no_file_can_have_is_reported_and_nobody_takes_it_out() -> None:
    world = ChangesWorld()
    await world.store.open()
    policy = {"policy": {}, "order": [], "mode_cap": "off", "of_fleet": []}
    await keep(
        world.store,
        set_here("quota", "a", {"cpu": 3}, 1),
        set_here("policy", "main", policy, 2),
        set_here("metric", "main", {"settings": {}}, 3),
    )
    await world.start()
    exported = await world.book.export()
    capped = [{"database": "main", "mode_cap": "off"}]
    assert exported.document == {**{section: [] for section in SECTIONS}, "policies": capped}
    assert [told.partition(".")[0] for told in exported.left_out] == [
        "not exported: quota a",
        "not exported: metric main",
    ]
    await world.apply(read_document(FILE))
    await world.apply({}, prune=True)
    assert world.standing("quota") == {"a": {"cpu": 3}}
    assert world.standing("policy")["main"]["mode_cap"] == "off"
    await world.close()


# --- policies and handovers ----------------------------------------------------------------------


async def test_the_policy_of_a_database_is_set_by_a_file(world: ChangesWorld) -> None:
    said = {"mode_cap": "warn", "order": ["web", "etl"], "exempt_usernames": ["ops"]}
    await world.apply({"policies": [{"database": "main", **said}]})
    edition = world.budgets.of("main").edition
    assert edition.changes.mode_cap is Mode.WARN
    assert edition.policy.exempt_usernames == ("ops",)
    assert [budget.name for budget in edition.policy.budgets] == ["web", "etl"]
    exported = await world.exported()
    assert exported["policies"] == [{"database": "main", **said}]
    assert (await world.apply(exported)).changes == ()
    pruned = await world.apply({}, prune=True)
    assert pruned.changes == (), "a switch is lifted only by who says so"
    await world.apply({"policies": [{"database": "main"}]})
    edition = world.budgets.of("main").edition
    assert (edition.changes.mode_cap, edition.policy.exempt_usernames) == (Mode.WARN, ())
    await world.apply({"policies": [{"database": "main", "mode_cap": "enforce"}]})
    assert world.budgets.of("main").edition.changes.mode_cap is Mode.ENFORCE
    assert (await world.exported())["policies"] == []


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"mode_cap": "loud"}, "policies[0].mode_cap"),
        ({"order": "web"}, "policies[0].order"),
        ({"exempt_usernames": 7}, "policies[0].exempt_usernames"),
        ({"exemt_usernames": ["ops"]}, "policies[0].exemt_usernames"),
        ({"reach": f"shard:{SHARD}"}, "policies[0].reach"),
        ({"database": "other"}, "policies[0].database"),
    ],
    ids=str,
)
async def test_a_policy_with_faults_is_rejected(
    world: ChangesWorld, entry: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        await world.apply({"policies": [{"database": "main", **entry}]})
    assert place in [fault.place for fault in caught.value.faults]


async def test_a_budget_that_lies_on_the_fleets_is_named_in_the_policy_of_the_same_file(
    world: ChangesWorld,
) -> None:
    fleet = budget_item({**ETL, "name": "wide"}, 1, "fleet")
    await world.budgets.follow([fleet], [Place(database="main")])
    change = await world.apply(
        {
            "budgets": [{"database": "main", "name": "wide", "rate": 30}],
            "policies": [{"database": "main", "mode_cap": "warn"}],
        }
    )
    assert [one.line for one in change.differences] == [
        "budget main/wide: set",
        "policy main: added",
    ]
    assert world.standing("policy")["main"]["of_fleet"] == ["wide"]


async def test_a_handover_is_announced_by_a_file_at_the_agent_of_the_primary(
    world: ChangesWorld,
) -> None:
    said = {"shard": SHARD, "reason": "upgrade"}
    with pytest.raises(InvalidSettings) as caught:
        await world.apply({"handovers": [{**said, "for": "2h"}]})
    assert [fault.place for fault in caught.value.faults] == ["handovers[0].for"]
    await world.apply({"handovers": [{**said, "for": "10m"}]})
    handover = world.shards.each[SHARD].handover
    assert handover is not None and handover.reason == "upgrade"
    exported = await world.exported()
    assert [entry["shard"] for entry in exported["handovers"]] == [SHARD]
    assert (await world.apply(exported, prune=True)).changes == ()
    assert (await world.apply({}, prune=True)).changes == (), "it ends by the role, or its time"


# --- back ----------------------------------------------------------------------------------------


async def test_one_sort_goes_back_and_the_others_stay(world: ChangesWorld) -> None:
    await world.apply(read_document(FILE))
    for sort, kinds in (
        ("metrics", {"metric"}),
        ("members", {"peer", "skip"}),
        ("budgets", {"budget"}),
        ("rules", {"rule"}),
    ):
        standing = {kind: world.standing(kind) for kind in ("rule", "budget", "metric", "peer")}
        change = await world.book.rollback(0, who="bob", only=[sort])
        assert {one.kind for one in change.differences} == kinds
        for kind in standing.keys() - kinds:
            assert world.standing(kind) == standing[kind]
        assert not any(world.standing(kind) for kind in kinds)
    both = await world.book.rollback(1, who="bob", only=["rules", "metrics"])
    assert {one.kind for one in both.differences} == {"rule", "metric"}
    assert world.metric_book.database("main").entry("lag").spec.threshold == 9


async def test_what_has_ended_since_does_not_come_back(world: ChangesWorld) -> None:
    await world.apply(read_document(FILE))
    await world.apply({}, prune=True)
    await world.clock.leap(3601)
    change = await world.book.rollback(1, who="bob")
    assert ("over", f"skip {SHARD} db-x") in [(one.code, one.place) for one in change.advice]
    assert world.standing("skip") == {} and len(world.standing("peer")) == 1


async def test_what_has_used_up_its_time_stays_ended_if_the_clock_is_set_back(
    world: ChangesWorld,
) -> None:
    """By the time that changes count (changes/time), whatever the wall clock says."""
    rule = {"id": "short", "target": "etl", "ratio": 0.5, "for": "1h"}
    await world.apply({**read_document(FILE), "rules": [rule, {**rule, "id": "long", "for": "9h"}]})
    await world.apply({}, prune=True)
    await world.clock.leap(3601)
    world.clock.set_wall(-3000)
    change = await world.book.rollback(1, who="bob")
    over = {one.place for one in change.advice if one.code == "over"}
    assert over >= {f"skip {SHARD} db-x", "rule short"} and "rule long" not in over
    assert world.standing("skip") == {} and list(world.standing("rule")) == ["long"]


async def test_a_switchover_is_not_announced_again_by_going_back(world: ChangesWorld) -> None:
    await world.shards.keeper.hand_over("main", for_s=600, reason="kernel", who="ada")
    await world.shards.keeper.take_back("main", who="ada")
    assert (await world.book.rollback(1, who="ada")).changes == ()
    await world.shards.keeper.hand_over("main", for_s=600, reason="kernel", who="ada")
    change = await world.book.rollback(0, who="ada", only=["members"])
    assert [one.line for one in change.differences] == [f"handover {SHARD}: taken out"]
    assert world.shards.each[SHARD].handover is None


@pytest.mark.parametrize("only", [[], ["budgets"]])
async def test_going_back_neither_lifts_nor_sets_the_switch_for_all_budgets(
    world: ChangesWorld, only: list[str]
) -> None:
    book = world.budgets.of("main").book
    await book.set_budget("new", {"rate": 5}, who="ada")
    await book.cap(Mode.OFF, who="ada")
    await world.book.rollback(0, who="bob", only=only)
    assert world.standing("budget") == {}
    assert book.edition.changes.mode_cap.value == "off"
    await book.cap(Mode.ENFORCE, who="ada")
    await world.book.rollback(2, who="bob", only=only)
    assert list(world.standing("budget")) == ["main/new"]
    assert book.edition.changes.mode_cap.value == "enforce"


async def test_a_file_that_was_built_on_an_older_revision_is_rejected(world: ChangesWorld) -> None:
    await world.apply(read_document(FILE))
    with pytest.raises(Conflict, match="the log is at revision 1, not 0"):
        await world.apply({"rules": []}, expect_n=0)
    with pytest.raises(Conflict, match="the log is at revision 1, not 0"):
        await world.book.rollback(0, who="ada", expect_n=0)


# --- in any order -------------------------------------------------------------------------------


METRIC = st.fixed_dictionaries(
    {"metric": st.sampled_from(["lag", "threads_running", "queue"])},
    optional={
        "threshold": st.sampled_from([1, 7.5, 90]),
        "for": st.sampled_from(["90s", "2h", "never"]),
    },
)
BUDGET = st.fixed_dictionaries(
    {"name": st.sampled_from(["etl", "web", "new", "b.2"])},
    optional={
        "rate": st.sampled_from([1, 2.5, 100]),
        "capacity": st.sampled_from([None, 50]),
        "mode": st.sampled_from(["warn", "enforce"]),
        "comment": st.text(st.characters(exclude_categories=["C", "Z"]), max_size=5),
        "rules": st.sampled_from([[], [{"match": {"username": "x"}}]]),
    },
)
DEEDS = st.one_of(
    st.tuples(st.just("metric"), METRIC),
    st.tuples(st.just("remove"), st.sampled_from(["lag", "threads_running", "queue"])),
    st.tuples(st.just("revert"), st.sampled_from(["lag", "threads_running", "queue"])),
    st.tuples(st.just("budget"), BUDGET),
    st.tuples(st.just("no budget"), st.sampled_from(["etl", "web", "new"])),
    st.tuples(st.just("cap"), st.sampled_from(["off", "enforce"])),
    st.tuples(st.just("peer"), st.sampled_from(["db-x", "db-y"])),
    st.tuples(st.just("no peer"), st.sampled_from(["db-x", "db-y"])),
    st.tuples(st.just("skip"), st.sampled_from(["db-b", "db-x", "db-a"])),
    st.tuples(st.just("rule"), st.sampled_from(["r1", "r2"])),
    st.tuples(st.just("lift"), st.sampled_from(["r1", "r2"])),
    st.tuples(st.just("hand over"), st.just(60.0)),
    st.tuples(st.just("back"), st.integers(0, 8)),
    st.tuples(st.just("prune"), st.sampled_from([*SECTIONS])),
)


async def do(world: ChangesWorld, deed: str, what: Any) -> None:
    metrics, shards = world.metric_book, world.shards
    budgets = world.budgets.of("main").book
    if deed == "metric":
        raw = {key: one for key, one in what.items() if key != "metric"}
        source = {"sql": "select 1", "threshold": 3} if what["metric"] == "queue" else {}
        await metrics.put("main", what["metric"], {**source, **raw}, who="ada")
    elif deed == "remove":
        await metrics.remove("main", what, who="ada")
    elif deed == "revert":
        await metrics.revert("main", what, who="ada")
    elif deed == "budget":
        raw = {key: one for key, one in what.items() if key != "name"}
        known = {raw["name"] for raw in budgets.edition.document["budgets"]}
        change = budgets.patch_budget if what["name"] in known else budgets.set_budget
        await change(what["name"], raw, who="ada")
    elif deed == "no budget":
        await budgets.remove(what, who="ada")
    elif deed == "cap":
        await budgets.cap(Mode(what), who="ada")
    elif deed == "peer":
        await shards.keeper.add_peer("main", what, url=url(what), peer_database="main", who="ada")
    elif deed == "no peer":
        await shards.keeper.remove_peer("main", what, who="ada")
    elif deed == "skip":
        await shards.keeper.skip("main", what, for_s=1234.5, reason="why", who="ada")
    elif deed == "rule":
        rule = {"id": what, "target": "etl", "ratio": 0.5}
        await verbs.put_rule(world.book, rule, reach=HERE, who="ada")
    elif deed == "lift":
        await verbs.lift_rule(world.book, what, who="ada")
    elif deed == "hand over":
        await shards.keeper.hand_over("main", for_s=what, reason="", who="ada")
    elif deed == "back":
        await world.book.rollback(what, who="ada")
    else:
        document = {**await world.exported(), what: []}
        await world.apply(document, prune=True)


def without_switches(document: Any) -> dict[str, Any]:
    """To go back neither lifts nor sets them."""
    policies = [{**one, "mode_cap": ""} for one in document["policies"]]
    policies = [one for one in policies if one.keys() != {"database", "mode_cap"}]
    return {**document, "policies": policies, "handovers": []}


@given(st.lists(DEEDS, max_size=8))
def test_an_export_that_is_applied_again_changes_nothing(deeds: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        world = await ChangesWorld().start()
        try:
            stood: dict[int, Any] = {0: await world.exported()}
            for deed, what in deeds:
                n = world.book.held.n
                try:
                    await do(world, deed, what)
                except HeadgateError:
                    assert world.book.held.n == n, "rejected, and nothing changed"
                exported = await world.book.export()
                stood[exported.n] = exported.document
                for text, is_json in (
                    (to_toml(exported.document, exported.left_out), False),
                    (to_json(exported.document), True),
                ):
                    read = read_document(text, is_json=is_json)
                    assert {**{key: [] for key in SECTIONS}, **read} == exported.document
                    same = await world.apply(read, prune=True, dry_run=True)
                    assert same.changes == ()
            for n, document in stood.items():
                await world.book.rollback(n, who="bob")
                assert without_switches(await world.exported()) == without_switches(document), n
        finally:
            await world.close()

    asyncio.run(play())


async def test_an_export_gives_another_agent_what_was_in_force_here(world: ChangesWorld) -> None:
    await world.apply(read_document(FILE))
    document = await world.exported()
    other = await ChangesWorld(clock=world.clock).start()
    await other.apply(document)
    assert await other.exported() == document
    await other.close()
