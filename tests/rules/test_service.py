"""Rules are kept before they count, come back after a restart, and outlive no clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.base.keyvalue import Compare, Put
from headgate.base.names import parse_identity
from headgate.base.overlay import Overlay
from headgate.changes.book import NoSuchItem
from headgate.changes.inforce import OwnInForce
from headgate.changes.model import ITEMS, Change, ChangeKind, item_key
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Place
from headgate.changes.state import ChangeMade, item_bytes
from headgate.changes.time import ChangeTime, parse_mark
from headgate.errors import Conflict, InvalidSettings, OutcomeUnknown, StoreUnavailable
from headgate.history.records import AuditEntry
from headgate.metrics.samples import BootInstant, Instant
from headgate.rules.drafts import Here, RuleDrafts, RuleEntry
from headgate.rules.matching import NO_RULES, RuleBook
from headgate.rules.notes import KEEP_TIME_S as KEEP_S
from headgate.rules.notes import RULE_TIME
from headgate.rules.routes import entry_of
from headgate.rules.service import SLICE, RuleKeeper
from headgate.rules.settings import KnownMetric, RuleLimits
from headgate.store.sqlite import SqliteStore
from tests.builders import NOW
from tests.changes import verbs
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_store import MemoryStore

KNOWN = {"lag": KnownMetric(5.0, True), "pool_usage": KnownMetric(1.0, True)}
HALF = {"target": "etl", "ratio": 0.5, "id": "half"}
EXEMPT = {
    "target": "etl",
    "kind": "exempt",
    "justification": "incident",
    "reason": "the fix",
    "id": "fix",
    "for": "2h",
}
DAY_S = 86_400.0


def known(database: str) -> Mapping[str, KnownMetric]:
    return KNOWN if database in ("", "main") else {}


class StepClock(HandClock):
    """One whose wall clock can be set, as an operator or NTP does."""

    def set_wall(self, by_s: float) -> None:
        self._now = Instant(self._now.mono_s, self._now.wall_s + by_s)

    async def leap(self, seconds: float) -> None:
        """As advance, but for the last second nobody is woken: days pass quickly."""
        self._step(seconds - 1)
        await self.advance(1)


class FailingStore(MemoryStore):
    """Rejects to write from the so-manieth change on; notes of the agent itself do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.puts_left = 1_000_000
        self.batches: list[int] = []

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        items = sum(put.key.startswith(ITEMS) and put.value is not None for put in puts)
        if self.puts_left < max(items, 1):
            raise StoreUnavailable("the disk is full")
        self.puts_left -= items
        if items:
            self.batches.append(items)
        return await super().commit(compares, puts, audit=audit, must_fit=must_fit)


PLACE = Place(host="here", database="main")


@dataclass
class World:
    store: FailingStore = field(default_factory=FailingStore)
    clock: StepClock = field(default_factory=StepClock)
    books: list[RuleBook] = field(default_factory=list)
    limits: RuleLimits = field(default_factory=RuleLimits)
    new_id: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        self.begin()

    boot_id: str = ""
    """Which boot of the machine it is; empty: the machine does not tell."""

    def begin(self) -> None:
        """A process: its rules, and the book of its own log."""
        self.keeper = RuleKeeper(
            self.store,
            self.clock,
            self.books.append,
            known,
            limits=self.limits,
            time=ChangeTime(self.clock, self.boot),
            forget=lambda rule_ids: self.own.forget(ChangeKind.RULE, rule_ids),
        )
        self.in_force = OwnInForce((self.keeper,), lambda: (PLACE,), self.clock)
        here = Here(self.keeper.advice, self.keeper.time.now_s)
        drafts = RuleDrafts(known, self.limits, here, self.new_id)
        self.own = OwnBook(self.store, self.clock, lambda: 0.5, drafts, self.in_force.changed)

    def boot(self) -> BootInstant | None:
        return BootInstant(self.boot_id, self.clock.now().mono_s) if self.boot_id else None

    async def restarted(self, *, salvaged: bool = False) -> RuleKeeper:
        self.begin()
        await self.load(salvaged=salvaged)
        return self.keeper

    async def load(self, *, salvaged: bool = False) -> None:
        held = await self.own.load(salvaged=salvaged)
        await self.in_force.load(list(held.items.values()))

    async def put(self, **raw: Any) -> str:
        (entry,) = await self.set(raw, who="ops")
        return entry.id

    async def set(self, raw: Mapping[str, Any], **said: Any) -> list[RuleEntry]:
        return self.made(await verbs.put_rule(self.own, raw, reach=HERE, **said))

    async def patch(self, rule_id: str, raw: Mapping[str, Any], **said: Any) -> list[RuleEntry]:
        return self.made(await verbs.patch_rule(self.own, rule_id, raw, **said), rule_id)

    async def lift(self, rule_id: str, **said: Any) -> list[RuleEntry]:
        return self.made(await verbs.lift_rule(self.own, rule_id, **said))

    async def favor(self, target: str, **said: Any) -> list[RuleEntry]:
        return self.made(await verbs.favor(self.own, target, reach=HERE, **said))

    def made(self, change: ChangeMade, rule_id: str = "") -> list[RuleEntry]:
        if not change.changes:
            return [replace(self.keeper.entry(rule_id), advice=change.advice)]
        if change.dry_run:
            now = self.clock.now()
            return [replace(entry_of(item, now), advice=change.advice) for item in change.items]
        return [replace(self.keeper.entry(i.id), advice=change.advice) for i in change.items]

    async def kept(self) -> list[str]:
        """The ids that the agent's own log has."""
        held = await self.own.load()
        return sorted(item.id for item in held.items.values() if item.kind == ChangeKind.RULE)

    def rejected_by(self, app: str = "etl:nightly", database: str = "main") -> str | None:
        reject = self._applied(app, database).reject
        return reject.id if reject else None

    def exempt_by(self, app: str = "etl:nightly") -> str | None:
        exempt = self._applied(app, "main").exempt
        return exempt.id if exempt else None

    def _applied(self, app: str, database: str) -> Any:
        book = self.books[-1] if self.books else NO_RULES
        return book.applied(parse_identity(app), database, self.clock.now().wall_s)

    async def actions(self) -> list[tuple[str, str, str]]:
        return [(e.who, e.action, e.target) for e in reversed(await self.store.audit())]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.store.open()
    return world


# --- setting and changing ----------------------------------------------------------------------


async def test_a_rule_is_kept_with_its_audit_before_it_counts(world: World) -> None:
    """R85, R140"""
    assert await world.put(**HALF) == "half"
    assert world.rejected_by() == "half"
    held = await world.own.load()
    item = held.rule("half")
    assert item is not None and item.value is not None and item.value["created_by"] == "ops"
    assert await world.actions() == [("ops", "rule.set", "half")]


async def test_what_the_store_does_not_take_does_not_count(world: World) -> None:
    world.store.puts_left = 0
    with pytest.raises(StoreUnavailable):
        await world.put(**HALF)
    assert world.rejected_by() is None
    assert world.keeper.entries() == []


async def test_what_was_kept_after_all_comes_into_force(world: World) -> None:
    """The disk took it and did not say so: it is in force once the store tells."""

    class Unsure(FailingStore):
        async def commit(self, *given: Any, **more: Any) -> int:
            await super().commit(*given, **more)
            raise OutcomeUnknown("the disk gave no answer")

    kind = type(world.store)
    world.store.__class__ = Unsure
    with pytest.raises(OutcomeUnknown):
        await world.put(**HALF)
    assert world.rejected_by() is None
    world.store.__class__ = kind
    await settle()
    await world.clock.advance(1)
    await settle()
    assert world.rejected_by() == "half"


async def test_it_takes_effect_although_another_caller_looked_in_between(world: World) -> None:
    """Who is told that an outcome is not known looks first."""
    commit = world.store.commit

    async def unsure(*given: Any, **more: Any) -> int:
        await commit(*given, **more)
        world.store.commit = commit  # type: ignore[method-assign]
        raise OutcomeUnknown("the disk gave no answer")

    world.store.commit = unsure  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await world.put(**HALF)
    assert (await world.own.items()).rule("half") is not None
    await settle()
    await world.clock.advance(1)
    await settle()
    assert world.rejected_by() == "half"


async def test_a_change_made_while_all_is_loaded_again_stays_in_force(world: World) -> None:
    """The store came back while operators were at work."""
    await world.put(**HALF)
    gate, listed = asyncio.Event(), world.store.list

    async def slow(prefixes: Sequence[str], **more: Any) -> Any:
        found = await listed(prefixes, **more)
        await gate.wait()
        return found

    world.store.list = slow  # type: ignore[method-assign]
    loading = asyncio.create_task(world.own.load(world.in_force.load))
    await settle()
    world.store.list = listed  # type: ignore[method-assign]
    setting = asyncio.create_task(world.put(target="web", ratio=0.1, id="new"))
    await settle()
    gate.set()
    await asyncio.gather(loading, setting)
    assert (world.rejected_by(), world.rejected_by("web")) == ("half", "new")


async def test_a_dry_run_validates_and_changes_nothing(world: World) -> None:
    (entry,) = await world.set(HALF, who="ops", dry_run=True)
    assert entry.spec.rule.ratio == 0.5
    with pytest.raises(InvalidSettings):
        await world.set({**HALF, "ratio": 2}, who="ops", dry_run=True)
    await world.put(**HALF)
    await world.patch("half", {"ratio": 0.9}, who="ops", dry_run=True)
    await world.lift("half", who="ops", dry_run=True)
    await world.favor("web", who="ops", dry_run=True)
    assert len(await world.store.audit()) == 1
    assert [e.spec.rule.ratio for e, _ in world.keeper.entries()] == [0.5]


async def test_names_are_made_up_and_never_twice() -> None:
    names = iter(["r-1", "r-1", "r-2"])
    world = World(new_id=lambda: next(names))
    await world.store.open()
    assert [await world.put(target=t, ratio=0.1) for t in ("a", "b")] == ["r-1", "r-2"]


async def test_a_rule_that_is_there_is_not_overwritten(world: World) -> None:
    await world.put(**HALF)
    with pytest.raises(Conflict, match="half already exists"):
        await world.put(**HALF)
    await world.clock.leap(3600)
    assert await world.put(**{**HALF, "ratio": 0.7}) == "half"


async def test_a_ratio_is_changed_alone(world: World) -> None:
    """R86: its end, its author and everything else stay."""
    await world.put(**HALF)
    before = world.keeper.entry("half").spec.rule
    await world.clock.leap(600)
    await world.patch("half", {"ratio": 0.9}, who="eve")
    after = world.keeper.entry("half").spec.rule
    assert (after.ratio, after.expires_at) == (0.9, before.expires_at)
    assert (after.created_by, after.created_at) == ("ops", before.created_at)
    assert (await world.actions())[-1] == ("eve", "rule.changed", "half")


async def test_an_end_is_changed_alone_and_counted_from_now(world: World) -> None:
    """R86: extensions are audited as such."""
    await world.put(**HALF)
    await world.clock.leap(3000)
    await world.patch("half", {"for": "2h"}, who="ops")
    assert world.keeper.entry("half").spec.rule.expires_at == NOW.wall_s + 3000 + 7200
    await world.clock.leap(7000)
    assert world.rejected_by() == "half"
    await world.clock.leap(200)
    assert world.rejected_by() is None
    assert (await world.actions())[-1] == ("ops", "rule.extended", "half")


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"target": "web"}, "rule.target"),
        ({"kind": "hold"}, "rule.kind"),
        ({"ratio": 1}, "rule.ratio"),
        ({"for": "90d"}, "rule.for"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "rule.expires_at"),
        ({"ratoi": 0.5}, "rule.ratoi"),
        ({}, "rule"),
    ],
)
async def test_a_change_is_validated_as_a_new_rule_is(
    world: World, raw: dict[str, Any], place: str
) -> None:
    await world.put(**HALF)
    with pytest.raises(InvalidSettings) as rejected:
        await world.patch("half", raw, who="ops")
    assert rejected.value.faults[0].place == place
    assert world.keeper.entry("half").spec.rule.ratio == 0.5


@pytest.mark.parametrize("end", ["for", "expires_at"])
async def test_an_end_cannot_be_taken_out(world: World, end: str) -> None:
    """R83: nor is that told as an extension."""
    await world.put(**HALF)
    with pytest.raises(InvalidSettings, match=rf"rule\.{end}: cannot be removed"):
        await world.patch("half", {end: None}, who="ops")
    assert await world.actions() == [("ops", "rule.set", "half")]


async def test_a_change_that_changes_nothing_says_so_and_is_not_audited(world: World) -> None:
    await world.put(**HALF)
    before = world.keeper.entry("half").spec
    (entry,) = await world.patch("half", {"ratio": 0.5}, who="ops")
    assert entry.spec == before and "nothing changed" in str(entry.advice[0])
    assert await world.actions() == [("ops", "rule.set", "half")]


async def test_of_two_changes_at_once_the_loser_gets_a_conflict(world: World) -> None:
    await world.put(**HALF)
    await world.patch("half", {"ratio": 0.6}, who="ops", expect=1)
    with pytest.raises(Conflict, match="half has revision 2, not 1"):
        await world.patch("half", {"ratio": 0.7}, who="eve", expect=1)
    with pytest.raises(Conflict):
        await world.lift("half", who="eve", expect=1, dry_run=True)
    assert world.keeper.entry("half").spec.rule.ratio == 0.6


async def test_a_rule_is_lifted_early_and_stays_lifted(world: World) -> None:
    """R86; no clock brings it back."""
    await world.put(**HALF)
    await world.lift("half", who="eve")
    assert world.rejected_by() is None
    world.clock.set_wall(-600)
    assert world.rejected_by() is None
    await world.restarted()
    assert world.rejected_by() is None
    assert world.keeper.entry("half").spec.lifted_by == "eve"
    with pytest.raises(InvalidSettings, match="has ended"):
        await world.patch("half", {"for": "1h"}, who="eve")
    with pytest.raises(NoSuchItem):
        await world.lift("other", who="eve")


async def test_odd_zones_are_rejected(world: World) -> None:
    with pytest.raises(InvalidSettings, match="time zone 'Mars/Olympus'"):
        await world.put(target="etl", ratio=0.5, schedule="mon 07:00-09:00 Mars/Olympus")


# --- favor (R76) -------------------------------------------------------------------------------


async def test_favor_leaves_one_client_alone_and_rejects_the_others(world: World) -> None:
    """R76: two rules; a client that nobody named is one of the others."""
    favored, reduced = await world.favor(
        "fix", who="ops", more={"for": "2h", "reason": "incident 42"}
    )
    assert (favored.spec.rule.ratio, reduced.spec.rule.ratio) == (0.0, 0.9)
    assert world.rejected_by("u1:fix") == favored.id
    assert world.rejected_by("new") == reduced.id
    assert [action for _, action, _ in await world.actions()] == ["rule.set", "rule.set"]
    await world.lift(favored.id, who="ops")
    assert (world.rejected_by("u1:fix"), world.rejected_by("new")) == (None, None)


async def test_who_is_favored_within_a_category_is_not_rejected_with_it(world: World) -> None:
    """Among equals the stricter wins: the favored one needs both tokens."""
    favored, _ = await world.favor("nightly", over="etl", who="ops")
    assert world.rejected_by("u1:etl:nightly") == favored.id
    assert world.rejected_by("nightly") is None


async def test_favor_takes_effect_at_once_and_whole(world: World) -> None:
    """One transaction: no check ever sees one half of it."""
    books_before = len(world.books)
    favored, reduced = await world.favor("fix", who="ops")
    assert len(world.books) == books_before + 1
    assert {rule.id for rule in world.books[-1].rules} == {favored.id, reduced.id}
    assert world.store.batches == [2]
    await world.patch(favored.id, {"for": "3h"}, who="ops")
    await world.lift(reduced.id, who="ops")
    assert world.store.batches == [2, 2, 2]
    assert len(world.books) == books_before + 3


async def test_both_rules_of_a_pair_end_at_the_same_instant(world: World) -> None:
    class Running(StepClock):
        """On which time passes between any two looks."""

        def now(self) -> Instant:
            self._step(0.25)
            return super().now()

    world.clock = Running()
    world.begin()
    one, other = await world.favor("mig", who="ops")
    assert one.spec.rule.expires_at == other.spec.rule.expires_at


async def test_a_hold_on_all_says_which_clients_it_spares(world: World) -> None:
    await world.favor("mig", who="ops")
    await world.put(**EXEMPT)
    await world.put(**{**EXEMPT, "id": "some", "target": "web", "metrics": ["lag"]})
    stop = {"target": "all", "kind": "hold", "reason": "INC", "lock_out": True}
    (entry,) = await world.set(stop, who="ops", dry_run=True)
    (told,) = [str(advice) for advice in entry.advice if advice.code == "not-held"]
    assert "mig (rule r-" in told and "etl (rule fix)" in told and "web" not in told
    one = {"target": "xyz", "kind": "hold", "reason": "INC"}
    (other,) = await world.set(one, who="ops", dry_run=True)
    assert other.advice == ()


async def test_limits_that_bite_by_now_can_still_be_extended(world: World) -> None:
    """Only who sets a limit is told that nobody meets it."""
    await world.put(target="all", kind="thresholds", thresholds={"lag": "2s"}, id="tight")
    KNOWN["lag"] = KNOWN["lag"]._replace(value=3.0, value_on="main")
    try:
        await world.patch("tight", {"for": "2h"}, who="ops")
        with pytest.raises(InvalidSettings, match="lag is 3s on main now"):
            await world.patch("tight", {"thresholds": {"lag": "1.5s"}}, who="ops")
    finally:
        KNOWN["lag"] = KNOWN["lag"]._replace(value=None)


async def test_favor_is_all_or_nothing(world: World) -> None:
    world.store.puts_left = 1
    with pytest.raises(StoreUnavailable):
        await world.favor("fix", who="ops")
    assert world.keeper.entries() == []
    assert (await world.kept(), await world.actions()) == ([], [])
    await world.restarted()
    assert (world.rejected_by("fix"), world.rejected_by("new")) == (None, None)


async def test_a_log_that_was_written_behind_our_back_is_read_again(world: World) -> None:
    """Another process on the same file: what it did is built on, and not overwritten."""
    favored, reduced = await world.favor("fix", who="ops")
    mine = world.own
    await world.restarted()
    await world.patch(reduced.id, {"ratio": 0.5}, who="eve")
    lifting = asyncio.create_task(verbs.lift_rule(mine, favored.id, who="ops"))
    await settle()
    await world.clock.advance(1)
    await lifting
    held = await world.own.load()
    values = [held.items[ChangeKind.RULE, one.id].value or {} for one in (favored, reduced)]
    assert [value["lifted_by"] for value in values] == ["ops", "ops"]
    assert values[1]["ratio"] == 0.5


async def test_with_an_old_revision_neither_half_is_changed(world: World) -> None:
    """If-Match names the half that was looked at."""
    favored, reduced = await world.favor("fix", who="ops")
    revision = reduced.spec.rule.revision
    await world.patch(reduced.id, {"for": "3h"}, who="eve", expect=revision)
    ends = {e.id: e.spec.rule.expires_at for e, _ in world.keeper.entries()}
    with pytest.raises(Conflict, match=f"has revision .*, not {revision}"):
        await world.patch(reduced.id, {"for": "1h"}, who="ops", expect=revision)
    with pytest.raises(Conflict):
        await world.lift(favored.id, who="ops", expect=favored.spec.rule.revision)
    assert {e.id: e.spec.rule.expires_at for e, _ in world.keeper.entries()} == ends


async def test_half_of_a_pair_counts_for_nothing_after_a_restart(world: World) -> None:
    """A half that cannot be read must not leave everybody rejected, and nobody favored."""
    favored, _ = await world.favor("fix", who="ops")
    await world.store.commit((), [Put(item_key(ChangeKind.RULE, favored.id, HERE), b"{}")])
    await world.restarted()
    assert (world.rejected_by("fix"), world.rejected_by("new")) == (None, None)


async def test_an_extension_reaches_both_of_a_pair(world: World) -> None:
    favored, reduced = await world.favor("fix", who="ops")
    await world.patch(reduced.id, {"ratio": 0.5}, who="ops")
    await world.patch(reduced.id, {"for": "3h"}, who="ops")
    ends = {e.id: e.spec.rule.expires_at for e, _ in world.keeper.entries()}
    assert ends[favored.id] == ends[reduced.id] == NOW.wall_s + 3 * 3600


@pytest.mark.parametrize(
    ("target", "over", "place"),
    [("all", "all", "favor.target"), ("etl", "etl", "favor.target"), ("a b", "all", "favor.target"),
     ("etl", "", "favor.over")],
)  # fmt: skip
async def test_nobody_is_favored_over_itself(
    world: World, target: str, over: str, place: str
) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        await world.favor(target, over=over, who="ops")
    assert rejected.value.faults[0].place == place


# --- across restarts and clocks (R84, R87, R141) -----------------------------------------------


async def test_rules_survive_a_restart_as_they_were(world: World) -> None:
    """R141"""
    await world.put(**HALF)
    await world.put(**EXEMPT)
    await world.put(target="web", ratio=0.2, schedule="mon-fri 07:00-09:30 Europe/Berlin")
    before = world.keeper.entries()
    keeper = await world.restarted()
    after = {entry.id: (entry.spec, rule) for entry, rule in keeper.entries()}
    assert after == {entry.id: (entry.spec, rule) for entry, rule in before}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_rule_ends_on_time(world: World, restart: bool) -> None:
    """R84: nothing runs here that would end it."""
    await world.put(**HALF)
    await world.clock.leap(3599)
    if restart:
        await world.restarted()
    assert world.rejected_by() == "half"
    await world.clock.advance(1)
    assert world.rejected_by() is None


async def test_a_clock_that_is_set_back_does_not_prolong_a_rule(world: World) -> None:
    """R87"""
    await world.put(**EXEMPT)
    async with world.running():
        await world.clock.leap(3600)
        world.clock.set_wall(-DAY_S)
        await world.clock.leap(3500)
        assert world.exempt_by() == "fix"
        await world.clock.advance(101)
        assert world.exempt_by() is None


async def test_an_ended_rule_does_not_come_back_with_the_clock(world: World) -> None:
    """R87: but for the second until the step is seen."""
    await world.put(**HALF)
    async with world.running():
        await world.clock.leap(4000)
        world.clock.set_wall(-2000)
        await world.clock.advance(1)
        await settle()
        assert world.rejected_by() is None


async def test_across_a_restart_with_a_clock_behind_a_rule_lasts_no_longer_than_its_term(
    world: World,
) -> None:
    """R87: the clock says that the rule is yet to be set."""
    await world.put(**HALF)
    world.clock.set_wall(-30 * DAY_S)
    await world.restarted()
    async with world.running():
        await world.clock.leap(3599)
        assert world.rejected_by() == "half"
        await world.clock.advance(2)
        assert world.rejected_by() is None


async def test_a_host_that_boots_at_an_old_clock_gives_no_time_back(world: World) -> None:
    """R87: time that has passed before a restart is never given back, however often."""
    await world.put(**HALF)
    world.clock.set_wall(-30 * DAY_S)
    in_force = []
    for _ in range(4):
        await world.restarted()
        async with world.running():
            await world.clock.leap(1500)
            in_force.append(world.rejected_by() is not None)
        world.clock.set_wall(-1500)
    assert in_force == [True, True, False, False]


async def test_a_clock_that_was_fast_and_is_put_right_in_between_prolongs_nothing(
    world: World,
) -> None:
    """R87: killed at any moment, it loses the few seconds since the last mark at most."""
    await world.put(**EXEMPT)
    async with world.running():
        await world.clock.leap(6000)
    world.clock.set_wall(-5900)
    await world.restarted()
    async with world.running():
        await world.clock.leap(1200 - 1)
        assert world.exempt_by() == "fix"
        await world.clock.leap(KEEP_S + 2)
        assert world.exempt_by() is None


async def test_a_crash_with_the_clock_set_back_gives_no_second_back(world: World) -> None:
    """N2: killed long after the last mark, down for a while, and the clock set back an hour: the
    time since boot tells what has passed."""
    world.boot_id = "this boot"
    world.begin()
    await world.put(**HALF)
    async with world.running():
        await world.clock.leap(1000)
    await world.clock.leap(2000)  # Killed, and down: no mark was made.
    world.clock.set_wall(-3600)
    await world.restarted()
    async with world.running():
        await world.clock.leap(599)
        assert world.rejected_by() == "half"
        await world.clock.advance(2)
        assert world.rejected_by() is None


async def test_after_another_boot_the_wall_clock_says_what_has_passed(world: World) -> None:
    """N2: the time since boot says nothing of the boot before."""
    world.boot_id = "this boot"
    world.begin()
    await world.put(**HALF)
    async with world.running():
        await world.clock.leap(1000)
    world.boot_id = "the next boot"
    world.clock.set_wall(+2000)
    await world.restarted()
    async with world.running():
        await world.clock.leap(600 - KEEP_S - 2)
        assert world.rejected_by() == "half"
        await world.clock.leap(KEEP_S + 4)
        assert world.rejected_by() is None


@pytest.mark.parametrize("boot", [None, "", 5, "id", "id x", "id 1e999", "id nan", "other 5", " 7"])
async def test_a_mark_of_another_version_is_read_as_far_as_it_goes(boot: object) -> None:
    mark = parse_mark({"ruled_s": 10.0, "wall_s": 20.0, "boot": boot})
    assert mark is not None and (mark.ruled_s, mark.wall_s) == (10.0, 20.0)
    assert mark.passed_s(BootInstant("id", 9.0)) is None


async def test_a_clock_that_is_put_right_by_years_ends_no_rule_that_was_set_since(
    world: World,
) -> None:
    """Booted in 1970, then told the time: the rules' own time is behind, and that is no harm."""
    await world.put(target="web", ratio=0.5, id="old")
    async with world.running():
        await world.clock.leap(60)
        world.clock.set_wall(20_000 * DAY_S)
        await world.clock.advance(20)
        await world.put(**HALF)
        await world.clock.advance(20)
    await world.restarted()
    assert world.rejected_by() == "half"
    assert world.rejected_by("web") is None


async def test_marks_of_time_are_kept_without_filling_the_audit(world: World) -> None:
    await world.put(**HALF)
    async with world.running():
        for _ in range(5):
            await world.clock.leap(KEEP_S + 1)
    (entry,) = (await world.store.list((RULE_TIME,))).entries
    ruled_s = json.loads(entry.value)["ruled_s"]
    assert ruled_s == pytest.approx(world.clock.now().wall_s, abs=KEEP_S + 2)
    assert [action for _, action, _ in await world.actions()] == ["rule.set"]


async def test_without_rules_no_time_is_kept(world: World) -> None:
    async with world.running():
        await world.clock.leap(KEEP_S + 1)
    assert (await world.store.list((RULE_TIME,))).entries == ()


async def test_many_rules_are_renewed_in_slices_and_in_force_together(world: World) -> None:
    """No check waits for thousands of them, and none sees half of them renewed."""
    rush = {"ratio": 0.5, "schedule": "00:00-24:00", "for": "2d"}
    for number in range(2 * SLICE + 10):
        await world.set({"target": f"j{number}", **rush}, who="ops")
    books = len(world.books)
    async with world.running():
        await world.clock.leap(DAY_S)
        await settle()
    assert len(world.books) == books + 1
    ends = {rule.windows[-1][1] for rule in world.books[-1].rules if rule.windows}
    assert len(ends) == 1 and ends != {r.windows[-1][1] for r in world.books[0].rules if r.windows}


async def test_a_clock_that_leaps_ahead_and_back_loses_no_rule(world: World) -> None:
    await world.put(**HALF)
    async with world.running():
        world.clock.set_wall(3 * DAY_S)
        await world.clock.advance(5)
        assert world.rejected_by() is None
        world.clock.set_wall(-3 * DAY_S)
        await world.clock.advance(5)
        assert world.rejected_by() == "half"
    assert await world.kept() == ["half"]


async def test_a_ratio_changed_after_a_step_does_not_prolong_the_rule(world: World) -> None:
    await world.put(**HALF)
    async with world.running():
        await world.clock.leap(1800)
        world.clock.set_wall(-DAY_S)
        await world.clock.advance(5)
        await world.patch("half", {"ratio": 0.6}, who="ops")
        await world.clock.leap(1800)
        assert world.rejected_by() is None


async def test_stale_policy_accumulation_nothing_outlives_its_term(world: World) -> None:
    """R87: the incident's exemption, the rush hour's suppression, the investigator's hold."""
    await world.put(**EXEMPT)
    await world.put(target="etl", ratio=0.9, schedule="00:00-24:00", **{"for": "1d"})
    await world.put(target="web", kind="hold", reason="investigation")
    await world.restarted()
    async with world.running():
        await world.clock.leap(DAY_S + 1)
        assert (world.exempt_by(), world.rejected_by(), world.rejected_by("web")) == (None,) * 3
        await world.clock.leap(DAY_S + 3601)
    assert await world.kept() == []
    assert world.keeper.entries() == []


async def test_the_salvaged_and_then_the_loaded_rules_count(world: World) -> None:
    await world.put(**EXEMPT)
    keeper = await world.restarted(salvaged=True)
    assert world.exempt_by() == "fix"
    assert await keeper.suspend("fix", "it starves web")
    await world.load()
    assert world.exempt_by() is None


async def test_a_kept_rule_that_cannot_be_read_does_not_take_the_others_along(
    world: World,
) -> None:
    await world.put(**HALF)
    odd = Change(ChangeKind.RULE, "odd", HERE, {"kind": "newer"}, 7, NOW.wall_s, "ops")
    await world.store.commit((), [Put(odd.key, item_bytes(odd))])
    await world.restarted()
    assert [entry.id for entry, _ in world.keeper.entries()] == ["half"]


# --- schedules ---------------------------------------------------------------------------------


async def test_a_recurring_rule_counts_within_its_windows_and_is_renewed(world: World) -> None:
    """NOW is Tuesday, 2023-11-14 22:13:20 UTC."""
    await world.put(
        target="etl", ratio=0.5, id="rush", schedule="wed,thu 07:00-09:00 UTC", **{"for": "28d"}
    )
    until_seven_s = (24 * 3600 - (22 * 3600 + 13 * 60 + 20)) + 7 * 3600
    async with world.running():
        assert world.rejected_by() is None
        await world.clock.leap(until_seven_s)
        assert world.rejected_by() == "rush"
        await world.clock.leap(2 * 3600)
        assert world.rejected_by() is None
        await world.clock.leap(14 * DAY_S - 7200)
        assert world.rejected_by() == "rush"
        await world.clock.leap(14 * DAY_S)
        assert world.rejected_by() is None


# --- exemptions that rest (R79) ----------------------------------------------------------------


async def test_an_exemption_is_suspended_and_goes_on(world: World) -> None:
    await world.put(**EXEMPT)
    assert await world.keeper.suspend("fix", "it starves web:api")
    assert not await world.keeper.suspend("fix", "again")
    assert world.exempt_by() is None
    await world.restarted()
    assert world.exempt_by() is None
    assert world.keeper.entry("fix").spec.suspended == "it starves web:api"
    assert await world.keeper.resume("fix")
    assert world.exempt_by() == "fix"
    done = [action for _, action, _ in await world.actions()]
    assert done == ["rule.set", "rule.suspended", "rule.resumed"]


async def test_others_are_protected_though_the_store_is_away(world: World) -> None:
    await world.put(**EXEMPT)
    world.store.puts_left = 0
    assert await world.keeper.suspend("fix", "it starves web")
    assert world.exempt_by() is None


async def test_what_an_exemption_was_charged_for_outlives_a_crash(world: World) -> None:
    """R79: with the rule, neither audited nor as a new revision."""
    await world.put(**EXEMPT)
    before = world.keeper.entry("fix").spec.rule.revision
    await world.keeper.charge("fix", {"main web": 61.5})
    await world.restarted()
    assert world.keeper.charged("fix") == {"main web": 61.5}
    assert world.keeper.entry("fix").spec.rule.revision == before
    assert await world.actions() == [("ops", "rule.set", "fix")]
    (entry,) = await world.patch("fix", {"reason": "still"}, who="ops")
    assert entry.spec.charged == {"main web": 61.5}
    await world.lift("fix", who="ops")
    await world.put(**EXEMPT)
    assert world.keeper.charged("fix") == {}, "set anew, it has a budget of its own"


async def test_a_charge_that_cannot_be_kept_counts_here(world: World) -> None:
    await world.put(**EXEMPT)
    await world.store.close()
    await world.keeper.charge("fix", {"main web": 9.0})
    assert world.keeper.charged("fix") == {"main web": 9.0}
    await world.keeper.charge("nobody", {"main web": 9.0})


async def test_only_what_the_log_does_not_say_is_noted(world: World) -> None:
    """Thousands of rules are kept once."""

    async def noted() -> list[str]:
        return [one.key for one in (await world.store.list(["notes/rule/"])).entries]

    await world.put(**HALF)
    await world.put(**EXEMPT)
    await world.keeper.keep_notes()
    assert await noted() == []
    await world.keeper.suspend("fix", "it starved web")
    assert await noted() == ["notes/rule/fix"]
    await world.keeper.resume("fix")
    assert await noted() == []
    await world.keeper.charge("fix", {"main web": 9.0})
    assert await noted() == ["notes/rule/fix"]
    assert (await world.restarted()).charged("fix") == {"main web": 9.0}


async def test_only_an_exemption_is_suspended(world: World) -> None:
    await world.put(**HALF)
    assert not await world.keeper.suspend("half", "why")
    assert not await world.keeper.suspend("nobody", "why")
    assert world.rejected_by() == "half"


# --- bounds ------------------------------------------------------------------------------------


async def test_there_is_a_most_and_what_ended_makes_room() -> None:
    world = World(limits=RuleLimits(max_rules=2))
    await world.store.open()
    await world.put(**HALF)
    await world.put(target="web", ratio=0.1, id="web", **{"for": "2h"})
    with pytest.raises(InvalidSettings, match="3 rules, at most 2"):
        await world.put(target="new", ratio=0.1)
    await world.clock.leap(3600)
    await world.put(target="new", ratio=0.1, id="new")
    assert [rule.id for rule in world.books[-1].rules if rule.in_force(world.clock.now().wall_s)]
    with pytest.raises(InvalidSettings):
        await world.favor("x", who="ops")


async def test_a_change_of_one_rule_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among as many as there may be: it costs what it changes."""
    world = World(limits=RuleLimits(max_rules=3))
    await world.store.open()
    for name in ("etl", "web", "batch"):
        await world.put(target=name, ratio=0.5, id=name)
    monkeypatch.setattr(Overlay, "_whole", lambda self: pytest.fail("it looks at all of them"))
    await world.patch("etl", {"ratio": 0.7}, who="ops")
    assert world.rejected_by() == "etl"
    await world.lift("etl", who="ops")
    assert world.rejected_by() is None
    assert world.rejected_by("web") == "web"


async def test_advice_comes_with_the_change(world: World) -> None:
    """R80"""
    await world.put(**HALF)
    (entry,) = await world.set(
        {"target": "etl", "kind": "metrics", "metrics": ["lag"]}, who="ops", dry_run=True
    )
    assert "partial exemption from pool_usage" in entry.advice[0].message
    (entry,) = await world.set({"target": "etl", "ratio": 0.4}, who="ops")
    assert [a.code for a in entry.advice] == ["shadowed"]


async def test_rules_survive_in_a_file(tmp_path: Path) -> None:
    """R141, with the store that agents have."""
    clock, books = StepClock(), list[RuleBook]()
    for restart in (False, True):
        store = SqliteStore(tmp_path / "state.db", deadline_s=DEADLINE_S)
        await store.open()
        world = World(cast(FailingStore, store), clock, books)
        await world.load()
        if not restart:
            await world.set({**HALF, "schedule": "00:00-24:00 Europe/Berlin"}, who="ops")
            await world.favor("fix", who="ops")
        await store.close()
    by_id = [{rule.id: rule for rule in book.rules} for book in (books[-2], books[-1])]
    assert by_id[0] == by_id[1] and len(by_id[1]) == 3
