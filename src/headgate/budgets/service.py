"""Traffic control of every database that has it.   settings, logs ──► Budgets ──► Control, metrics

plan, FollowedBudgets ──► PolicyKeeper ──Edition──► Publisher ──► servers
                          servers ──counters──► BudgetWatch ──► Store
Board ──health──► (each second, where a budget hangs on it) ──► Publisher
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import structlog

from headgate.base.declared import parse_date_time
from headgate.base.ports import BudgetMeter, Clock, PolicySink, Store
from headgate.base.supervise import beside
from headgate.budgets.charging import Debits, LedgerOf, SharedLedger
from headgate.budgets.identity import NO_SERVER_RULES, IdentityTerms, ServerRules, gates_of
from headgate.budgets.inforce import PolicyInForce
from headgate.budgets.keeper import NoSuchBudget, PolicyKeeper
from headgate.budgets.layers import (
    EMPTY,
    KINDS,
    NO_CHANGES,
    UNREADABLE,
    BudgetHere,
    ChangesHere,
    Document,
    Edition,
    EditionChange,
    FleetBudget,
    PolicyChanges,
    WideCap,
    changes_of,
    database_of,
    read_budget,
    read_cap,
    read_policy,
    read_wide,
    stacked,
)
from headgate.budgets.meter import BudgetWatch, decisions_of
from headgate.budgets.policy import Policy
from headgate.budgets.publisher import Publisher
from headgate.budgets.statements import StatementTexts
from headgate.budgets.tracing import TraceMemory, TraceSource
from headgate.changes.inforce import ChangeMemory
from headgate.changes.model import FORGET_AFTER_S, Change, ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Place, layers_at
from headgate.changes.state import counted_from, ends_at
from headgate.changes.time import ChangeTime
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.health import Health
from headgate.check.snapshot import Counted
from headgate.errors import StoreUnavailable
from headgate.metrics.samples import Cause, Instant
from headgate.rules.matching import NO_RULES, RuleBook

log = structlog.get_logger()
CountDecisions = Callable[[Counted, Health | None, Instant], None]

TICK_S = 1.0
TOLD_FOR_MS = 10_000
"""How long a server uses a report of its health."""
AWAKE = "budgets"
_TOO_EARLY = frozenset({Cause.NEVER_READ, Cause.HIBERNATING, Cause.WARMING_UP})


@dataclass(frozen=True, slots=True)
class Gear:
    """What reaches one server."""

    sinks: tuple[PolicySink, ...] = ()
    meter: BudgetMeter | None = None
    traces: TraceSource | None = None
    ledger: SharedLedger | None = None


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """What the settings say of one database."""

    database: str
    base: Document = field(default_factory=lambda: EMPTY)
    """The policy file's, as `written`."""
    source: str = ""
    """Path of that file."""
    directory: str = ""
    """Of the server; another one means other gear."""
    open_gear: Callable[[], Gear] = Gear
    cpus_milli: int = 1000
    """CPUs of this host, in thousandths: for our own ledger, if the server's is out of reach."""
    own_role: str = ""
    """Database user of the agent: no budget may ever block its probes. Empty: not known."""
    identity: IdentityTerms | None = None
    """How clients are named in the server; None: a proxy does that, and applies the rules."""


class Controlled:
    """One database's parts."""

    def __init__(
        self,
        plan: TrafficPlan,
        store: Store,
        own: OwnBook,
        clock: Clock,
        aside: Callable[[], bool],
    ) -> None:
        self.plan = plan
        self._clock = clock
        self._aside = aside
        self._fit_out(plan)
        self.in_force = PolicyInForce(plan.database, store, clock, self._publish, plan.own_role)
        self.book = PolicyKeeper(self.in_force, own, clock)
        self.texts = StatementTexts()
        self.is_loaded = False
        """The operators' changes are known: before that, nothing is published."""
        self.ruling = NO_SERVER_RULES
        """What the server has of operators' rules, beside the budgets."""

    async def adopt(self, plan: TrafficPlan) -> None:
        """Other settings of the same database."""
        if plan.directory != self.plan.directory:
            self._fit_out(plan)
        self.plan = plan
        await self.in_force.adopt(plan.base, plan.own_role)
        self._hold()

    async def follow(self, layers: LayersHere, *, publish: bool = False) -> None:
        """What both logs say of this database. `publish`: servers get what was changed here now.
        The rest they get by the next tick: a server that hangs keeps nobody from following."""
        self.in_force.end(layers.over)
        if self.in_force.cap_by(layers.caps):
            self._hold()
            if publish:
                await self.publish()
        if await self.in_force.follow(layers.fleet):
            self.publisher.hold(self._wanted(self.edition), self.edition.revision)
        if await self.in_force.follow_own(layers.here, publish=publish) and not publish:
            self._hold()

    def _fit_out(self, plan: TrafficPlan) -> None:
        gear, database, clock = plan.open_gear(), plan.database, self._clock
        self.publisher = Publisher(database, gear.sinks, clock)
        self.watch = BudgetWatch(database, gear.meter, clock) if gear.meter else None
        self.traces = TraceMemory(database, gear.traces, clock) if gear.traces else None
        self.ledger = LedgerOf(database, gear.ledger, plan.cpus_milli)

    @property
    def edition(self) -> Edition:
        return self.in_force.edition

    @property
    def has_policy(self) -> bool:
        """Of its own: a file, what was ever changed here, or what the fleet has set; also where
        it had one once. An agent without, for it is new or its state was lost, lifts nobody's
        limits: it leaves alone what lies there."""
        edition = self.edition
        known = edition.revision > 0 or edition.changes.any or bool(edition.fleet)
        return bool(self.plan.source) or known or self.in_force.notes.is_noted

    @property
    def is_off(self) -> bool:
        """Switched off at the server itself: whatever is published, no budget applies."""
        readings = self.watch.readings if self.watch is not None else None
        seen = readings is not None and (readings.off or not readings.enabled)
        return seen or any(outlet.off for outlet in self.publisher.outlets)

    def _hold(self) -> None:
        if self.has_policy or self._has_rules_alone:
            self.publisher.hold(self._wanted(self.edition), self.edition.revision)

    def _wanted(self, edition: Edition) -> Policy:
        return replace(edition.in_force(self.wall_ms), ruling=self.ruling)

    @property
    def _has_rules_alone(self) -> bool:
        """And no other's budgets lie there, which a policy without any would lift."""
        others = any(outlet.others is not None for outlet in self.publisher.outlets)
        return self.publisher.wanted is not None or (bool(self.ruling.gates) and not others)

    def rule(self, book: RuleBook) -> None:
        """The rules that act on clients, or will soon."""
        plan = self.plan
        if plan.identity is None:
            return
        gates = gates_of(book, plan.database, self._clock.now().wall_s)
        ruling = ServerRules(plan.identity, gates)
        if ruling != self.ruling:
            self.ruling = ruling
            self._hold()
            if gates and self.is_loaded and self.publisher.wanted is None:
                detail = "another program's policy lies there; give this agent its budgets"
                log.warning("rules.not_published", database=plan.database, detail=detail)

    async def publish(self) -> None:
        if self.has_policy:
            await self._publish(self.edition)

    async def _publish(self, edition: Edition) -> None:
        policy = self._wanted(edition)
        if self._aside() or not self.is_loaded:
            self.publisher.hold(policy, edition.revision)
        else:
            await self.publisher.publish(policy, edition.revision)

    async def tick(self) -> None:
        if not self.is_loaded or self._aside():
            return
        await self.book.tend()
        if self.publisher.wanted is None:  # What it once had is known by now.
            self._hold()
        self._leave_out_expired()
        await self.publisher.look()
        self._compare()
        await self.publisher.tick()

    def _compare(self) -> None:
        """The files are looked at by the publisher; this is what the server makes of them."""
        readings = self.watch.readings if self.watch is not None else None
        outlets = self.publisher.outlets
        if readings is not None and len(outlets) == 1:
            outlets[0].compare(readings)

    def _leave_out_expired(self) -> None:
        """The file's: they stay in the document, and leave what servers get."""
        wanted, wall_ms = self.publisher.wanted, self.wall_ms
        over = self.edition.ended(wall_ms)
        if over and wanted is not None and any(b.name in over for b in wanted.policy.budgets):
            self._hold()

    @property
    def wall_ms(self) -> int:
        return int(self._clock.now().wall_s * 1000)


class Budgets:
    def __init__(
        self,
        store: Store,
        board: Board,
        demands: Demands,
        clock: Clock,
        *,
        stands_aside: Callable[[], bool] = lambda: False,
        time: ChangeTime | None = None,
        rules: Callable[[], RuleBook] = lambda: NO_RULES,
        count: CountDecisions | None = None,
    ) -> None:
        """`stands_aside`: while true another agent tells the servers, such as the active one of a
        pair. `rules`: those in force. `count`: takes what servers decided about clients."""
        self._store = store
        self._board = board
        self._demands = demands
        self._clock = clock
        self._stands_aside = stands_aside
        self._rules = rules
        self._count = count
        self._followed = FollowedBudgets(time or ChangeTime(clock))
        self._following = asyncio.Lock()
        self.own: OwnBook
        """The agent's own log: set by the composition root, before `adopt`."""
        self.by_database: dict[str, Controlled] = {}
        self.debits = Debits(self.by_database, self.health_of)

    def of(self, database: str) -> Controlled:
        try:
            return self.by_database[database]
        except KeyError:
            known = ", ".join(sorted(self.by_database)) or "none"
            message = (
                f"traffic control is not set up for {database!r} (it is for: {known}). "
                f"Add [databases.{database}.traffic] to the settings file and SIGHUP the agent"
            )
            raise NoSuchBudget(message) from None

    async def adopt(self, plans: Iterable[TrafficPlan]) -> None:
        """Follow the settings. A database that is new here comes with what the logs say of it."""
        wanted = {plan.database: plan for plan in plans}
        for database in self.by_database.keys() - wanted.keys():
            self._keep_awake(database, on=False)
            gone = self.by_database.pop(database)
            for outlet in gone.publisher.outlets:
                # Removing the table from the settings may not mean to lift the limits.
                detail = "it keeps its last policy; `headgate pg disable` ends that"
                log.warning("policy.left", database=database, where=outlet.where, detail=detail)
        for database, plan in wanted.items():
            known = self.by_database.get(database)
            if known is not None:
                await known.adopt(plan)
                continue
            new = Controlled(plan, self._store, self.own, self._clock, self._stands_aside)
            await new.adopt(plan)
            self.by_database[database] = new
            await self._follow(new)

    def watched(self) -> Mapping[str, tuple[BudgetWatch | None, StatementTexts]]:
        """Whose statements are counted, and what is known of their texts."""
        return {name: (one.watch, one.texts) for name, one in self.by_database.items()}

    # --- from the logs ---------------------------------------------------------------------

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What is set, as RuleKeeper.follow: what the fleet says lies on the settings file, and
        under what was changed at this agent. What cannot stand is left out, with its reason."""
        if own and not whole and not any(item.kind in KINDS for item in items):
            return  # A change of something else, by an operator who waits for it.
        wall_s, followed = self._clock.now().wall_s, self._followed
        async with self._following:  # In the order in which it was set.
            await beside(
                len(items), lambda: followed.follow(items, places, wall_s, whole=whole, own=own)
            )
            followed.look()
        for controlled in list(self.by_database.values()):
            await self._follow(controlled, publish=own and not whole)

    async def publish(self) -> None:
        """Tell servers now what the next tick would tell them."""
        for controlled in list(self.by_database.values()):
            await controlled.publish()

    async def tried(self, database: str, items: Sequence[Change]) -> EditionChange:
        """What these changes would make of a database's policy; nothing changes."""
        controlled = self.of(database)
        fleet = self._followed.fleet_with(database, items, controlled.edition.fleet)
        return await controlled.book.tried(items, fleet)

    async def _follow(self, controlled: Controlled, *, publish: bool = False) -> None:
        database, followed = controlled.plan.database, self._followed
        async with self._following:
            layers = await beside(followed.size, lambda: followed.of(database))
        controlled.is_loaded = followed.is_own_known
        await controlled.follow(layers, publish=publish)

    @property
    def fleet_faults(self) -> Mapping[str, str]:
        """Of budgets in either log: why one is not in force here as it was set."""
        left_out = {
            f"{item_id} on {database}": fault
            for database, controlled in self.by_database.items()
            for item_id, fault in controlled.edition.left_out.items()
        }
        return {**self._followed.faults, **left_out}

    @property
    def left_out(self) -> dict[str, str]:
        """The same by the id of the change, for other agents."""
        each = (controlled.edition.left_out for controlled in self.by_database.values())
        return {**self._followed.faults, **{one: why for some in each for one, why in some.items()}}

    # --- each second -----------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self.tick()
            await self._clock.sleep(TICK_S)

    async def tick(self) -> None:
        each = list(self.by_database.values())
        async with self._following:
            is_otherwise = self._followed.look()
        for controlled in each if is_otherwise else ():
            await self._follow(controlled)
        await asyncio.gather(*(self._tick(controlled) for controlled in each))
        await self.flush()

    async def _tick(self, controlled: Controlled) -> None:
        controlled.rule(self._rules())
        await controlled.tick()
        await self._tell_health(controlled)
        if controlled.watch is not None:
            await controlled.watch.look()
            self._count_decisions(controlled, controlled.watch)
        await controlled.ledger.tend()
        if controlled.traces is not None:
            await controlled.traces.look(self.health_of(controlled.plan.database))

    def _count_decisions(self, controlled: Controlled, watch: BudgetWatch) -> None:
        """What the server decided about clients: to the log of checks and of a proxy's reports."""
        if self._count is None:
            return
        database, now = controlled.plan.database, self._clock.now()
        health = self._board.healths.get(database)
        for row in decisions_of(watch.drain_clients(), database, self._rules(), now.wall_s):
            self._count(row, health, now)

    async def _tell_health(self, controlled: Controlled) -> None:
        database, edition = controlled.plan.database, controlled.edition
        by_health = edition.by_health and bool(controlled.publisher.outlets)
        # Rogue clients are no demand; but a budget that depends on metrics needs them measured.
        self._keep_awake(database, on=by_health)
        if not by_health or self._stands_aside():
            return
        healthy = self.health_of(database)
        if healthy is not None:
            until_ms = controlled.wall_ms + TOLD_FOR_MS
            await controlled.publisher.tell_health(healthy=healthy, until_ms=until_ms)

    def health_of(self, database: str) -> bool | None:
        """As a check of the default metrics is decided; None while nothing was measured yet."""
        health = self._board.healths.get(database)
        if health is None or not health.own.standings:
            return None
        absent = (standing.absent for standing in health.own.standings)
        if any(one is not None and one.cause in _TOO_EARLY for one in absent):
            return None
        now = self._clock.now()
        return health.own.all_pass and now.mono_s <= health.own.all_pass_until

    def _keep_awake(self, database: str, *, on: bool) -> None:
        demand = self._demands.by_database.get(database)
        if demand is not None and on is not (AWAKE in demand.keepers):
            demand.keep_awake(AWAKE, on=on)

    async def flush(self) -> None:
        """Violations go to the store; what it does not take goes on waiting."""
        watches = [c.watch for c in self.by_database.values() if c.watch is not None]
        for watch in watches:
            drained = watch.minutes.drain()
            try:
                if drained:
                    await self._store.history.add_budget_minutes(drained)
            except StoreUnavailable as error:
                watch.minutes.restore(drained)
                log.warning("budgets.minutes_unkept", database=watch.database, detail=str(error))


# --- of both logs, for each database ------------------------------------------------------------

ONE_AGENT = "is for one agent alone, which belongs in its own log, not in a fleet's"


class LayersHere(NamedTuple):
    """What lies on the settings file of one database."""

    fleet: tuple[FleetBudget, ...] = ()
    """By name."""
    here: ChangesHere = ChangesHere()
    over: frozenset[str] = frozenset()
    """Budgets changed here or for the shard, by name, whose time is used up, whatever the clock
    says."""
    caps: tuple[WideCap, ...] = ()


class FollowedBudgets:
    """The budgets of both logs as this agent has them: for each database those that reach beyond
    this agent, and on top what was changed here (changes/reach.py says what counts)."""

    def __init__(self, time: ChangeTime) -> None:
        self._own = _Followed(time, own=True)
        self._fleet = _Followed(time, own=False)
        self._used_up: frozenset[str] = frozenset()
        self._places: dict[str, Place] = {}
        self._by_database: dict[str, LayersHere] = {}
        """Recomputed since the last change."""
        self.is_own_known = False
        """The agent's own log was read completely once."""

    @property
    def size(self) -> int:
        return len(self._own.budgets) + len(self._fleet.budgets)

    @property
    def faults(self) -> dict[str, str]:
        """By the id of the item: why it cannot be read as it is now."""
        return {**self._own.faults, **self._fleet.faults}

    def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        wall_s: float,
        *,
        whole: bool,
        own: bool,
    ) -> None:
        """As RuleKeeper.follow. Some of the own log mean nothing before all of it is known."""
        if own and not whole and not self.is_own_known:
            return
        followed = self._own if own else self._fleet
        by_database = {place.database: place for place in places}
        if followed.take(items, wall_s, whole=whole) or by_database != self._places:
            self._by_database = {}
        self._places = by_database
        self.is_own_known = self.is_own_known or own

    def look(self) -> bool:
        """Whether the time of others is used up than when it was last looked at."""
        used_up = frozenset([*self._own.used_up(), *self._fleet.used_up()])
        if used_up == self._used_up:
            return False
        self._used_up, self._by_database = used_up, {}
        return True

    def of(self, database: str) -> LayersHere:
        if database not in self._by_database:
            self._by_database[database] = self._worked_out(database)
        return self._by_database[database]

    def fleet_with(
        self, database: str, items: Sequence[Change], now: Mapping[str, FleetBudget]
    ) -> list[FleetBudget]:
        """Those that reach beyond this agent, as they would be with `items`. What lies beneath one
        that is taken out is not looked for."""
        place = self._places.get(database, Place(database=database))
        wide = [one for one in items if one.kind == ChangeKind.BUDGET and one.reach != HERE]
        ids = {item.id for item in wide}
        said = [one for one in now.values() if one.item_id not in ids]
        said += [read_wide(item, of_shard=False) for item in wide if item.value is not None]
        found = {name: stacked(some) for name, some in layers_at(place, said).items()}
        return [found[name] for name in sorted(found)]

    def _worked_out(self, database: str) -> LayersHere:
        place = self._places.get(database, Place(database=database))
        both = [*self._fleet.budgets.values(), *self._own.budgets.values()]
        is_whole = {b.item_id for b in both if isinstance(b, FleetBudget) and b.whole}
        said = [b for b in both if b.item_id not in self._used_up & is_whole]
        layers = layers_at(place, said).values()
        fleet = {}
        for some in layers:
            if alike := [one for one in some if isinstance(one, FleetBudget)]:
                fleet[alike[0].name] = stacked(alike)
        here = [some[-1] for some in layers if isinstance(some[-1], BudgetHere)]
        changes = changes_of(here, self._own.policies.get(database, NO_CHANGES))
        n = self._own.newest_n.get(database, 0)
        ending: list[FleetBudget | BudgetHere] = [*here, *fleet.values()]
        over = frozenset(one.name for one in ending if one.item_id in self._used_up)
        caps = [*self._fleet.caps.values(), *self._own.caps.values()]
        applying = tuple(cap for cap in caps if cap.applies_to(place))
        wide = tuple(fleet[name] for name in sorted(fleet))
        return LayersHere(wide, ChangesHere(changes, n), over, applying)


class _Followed:
    """The items of one log, each read once."""

    def __init__(self, time: ChangeTime, *, own: bool) -> None:
        self._time = time
        self._notes = f"{ChangeKind.BUDGET}/{'own' if own else 'fleet'}/"
        self._ending: dict[str, tuple[float, float]] = {}
        """By the id of the item: when it was set, and its end."""
        self._is_whole = self._is_news = False
        """Everything was read once; there was news since the last look."""
        self._is_own = own
        self._items = [ChangeMemory(kind) for kind in KINDS]
        self.budgets: dict[str, FleetBudget | BudgetHere] = {}
        """By the id of the item: its last readable version."""
        self.policies: dict[str, PolicyChanges] = {}
        """By database: what was changed here besides budgets."""
        self.caps: dict[str, WideCap] = {}
        """By the id of the item: switches that reach beyond this agent."""
        self.newest_n: dict[str, int] = {}
        """By database."""
        self.faults: dict[str, str] = {}

    def take(self, items: Sequence[Change], wall_s: float, *, whole: bool) -> bool:
        """Whether it is news."""
        self._is_whole = self._is_whole or whole
        news = [(memory, memory.news(items, whole=whole)) for memory in self._items]
        for memory, found in news:
            for item_id, item in found.items():
                self.faults.pop(item_id, None)
                self._read(item_id, item, wall_s)
            memory.remember(found)
        if not any(found for _, found in news):
            return False
        self.newest_n, self._is_news = {}, True
        for item in self._known():
            database = database_of(item)
            self.newest_n[database] = max(item.n, self.newest_n.get(database, 0))
        return True

    def _known(self) -> Iterator[Change]:
        return (item for memory in self._items for item in memory.known.values())

    def _read(self, item_id: str, item: Change | None, wall_s: float) -> None:
        if item is None or item.value is None or _is_over(item, wall_s):
            self.budgets.pop(item_id, None)
            self.policies.pop(item_id, None)
            self.caps.pop(item_id, None)
            self._ending.pop(item_id, None)
            return
        try:
            if item.kind == ChangeKind.POLICY and item.reach != HERE:
                self.caps[item_id] = read_cap(item)
            elif item.reach == HERE and not self._is_own:
                raise ValueError(ONE_AGENT)
            elif item.kind == ChangeKind.POLICY:
                self.policies[item_id] = read_policy(item)
            elif (budget := self._budget(item)) is not None:
                self.budgets[item_id] = budget
                self._ending.pop(item_id, None)
                if (end_s := _end_of(budget)) is not None:
                    self._ending[item_id] = counted_from(item), end_s
        except UNREADABLE as error:
            # Of a newer version, or broken: the last good one stays.
            fault = str(error) if isinstance(error, ValueError) else repr(error)
            self.faults[item_id] = fault
            log.error("policy.item_rejected", kind=str(item.kind), id=item_id, fault=fault)

    def used_up(self) -> list[str]:
        """Those whose time is over though the wall clock does not say so. Not for a thread: others
        count their time, too."""
        is_used_up, notes = self._time.is_used_up, self._notes
        if self._is_whole and self._is_news:
            self._time.keep_only(notes, self._ending)
            self._is_news = False
        return [one for one, ends in self._ending.items() if is_used_up(f"{notes}{one}", *ends)]

    def _budget(self, item: Change) -> FleetBudget | BudgetHere | None:
        if item.reach != HERE:
            return read_wide(item, of_shard=self._is_own)
        return read_budget(item)


def _end_of(budget: FleetBudget | BudgetHere) -> float | None:
    raw: Mapping[str, Any] = {}
    if isinstance(budget, FleetBudget):
        raw = budget.raw or {}
    elif budget.change is not None:
        raw = budget.change.settings
    given = raw.get("expires_at")
    return None if given is None else parse_date_time(given)


def _is_over(item: Change, wall_s: float) -> bool:
    """One that has just ended is still shown, as others are."""
    try:
        end_s = ends_at(item)
    except ValueError:
        return False  # Reading it says what is wrong with it.
    return end_s is not None and end_s < wall_s - FORGET_AFTER_S
