"""What operators set one by one: metrics, skips, peers, handovers.

logs ──items──► SetItems (values by id) ──► Shards, MetricKeeper
                 a request + LogState ──put──► Edit ──► OwnBook.make
                 taken out a day ago ──Forgetter──► OwnBook.forget
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NotRequired, Protocol, TypedDict, TypeVar

import structlog

from headgate.base.ports import Clock
from headgate.changes.exchanged import apart
from headgate.changes.inforce import ChangeMemory
from headgate.changes.model import FORGET_AFTER_S, Change, ChangeKind, Edit
from headgate.changes.reach import HERE, Reach
from headgate.changes.state import ChangeMade, Draft, LogState, counted_from, ends_at
from headgate.changes.time import ChangeTime
from headgate.errors import Conflict, StoreUnavailable
from headgate.rules.drafts import ChangeAuthor

log = structlog.get_logger()

FORGET_EVERY_S = 60.0
MAX_FORGOTTEN_AT_ONCE = 500

T = TypeVar("T")


class By(TypedDict):
    """Who makes a change, or only tries it."""

    who: str
    dry_run: NotRequired[bool]


class Expecting(By):
    expect: NotRequired[int | None]
    """Only if the changed item has that revision."""


class Make(Protocol):
    """As OwnBook.make: in the log, and in force, when it returns. A room must not hold a lock
    meanwhile that its `follow` takes."""

    def __call__(
        self, draft: Callable[[LogState, ChangeAuthor], Draft], who: str, *, dry_run: bool
    ) -> Awaitable[ChangeMade]: ...


class ReachOf(Protocol):
    """As Exchange.reach: how far a change reaches that is for these databases."""

    def __call__(self, given: Reach | None, databases: Sequence[str]) -> Awaitable[Reach]: ...


async def always_here(given: Reach | None, databases: Sequence[str]) -> Reach:
    """Of an agent that shares its changes with nobody."""
    return given or HERE


def is_here(item: Change) -> bool:
    return item.reach == HERE


class SetItems(Generic[T]):
    """What the logs have of one kind, as values. Of one id, what was set at this agent counts
    before what was set for its shard, and that before what the fleet's log says."""

    def __init__(
        self,
        kind: ChangeKind,
        parse: Callable[[Change, float], T],
        time: ChangeTime,
        *,
        concerns: Callable[[Change], bool] = is_here,
    ) -> None:
        """`parse` is given by when it has ended by the monotonic clock, too. It raises KeyError,
        TypeError or ValueError for what it cannot read; it is never given one that is taken out.
        `concerns`: which ones mean something to an agent."""
        self.kind = kind
        self._concerns = concerns
        self._time = time
        self._recalled = time.recalled
        self._here, self._shards, self._fleet = (
            _Layer(f"{kind}/{name}/", ChangeMemory(kind), parse, time)
            for name in ("host", "shard", "fleet")
        )
        self.values: dict[str, T] = {}
        """By id; those in force."""

    @property
    def _layers(self) -> tuple[_Layer[T], ...]:
        return self._here, self._shards, self._fleet

    @property
    def faults(self) -> dict[str, str]:
        """By id: why it cannot be read as it is now."""
        faults = [layer.faults for layer in reversed(self._layers)]
        return {name: fault for some in faults for name, fault in some.items()}

    def n_of(self, item_id: str) -> int:
        """The revision that changed it last; 0: none did."""
        known = [item for layer in self._layers if (item := layer.items.known.get(item_id))]
        standing = (item.n for item in known if item.value is not None)
        return next(standing, max((item.n for item in known), default=0))

    def is_in(self, item_id: str, *, own: bool) -> bool:
        """Whether the agent's own log, or the fleet's, has it, as far as that is known."""
        layers = (self._here, self._shards) if own else (self._fleet,)
        return any(item_id in layer.values for layer in layers)

    def follow(self, items: Sequence[Change], *, whole: bool, own: bool = True) -> list[str]:
        """The ids of those that are otherwise now."""
        kind, concerns = self.kind, self._concerns
        mine = [item for item in items if item.kind is kind and concerns(item)]
        beyond = [item for item in mine if item.reach != HERE]
        if own:
            here = [item for item in mine if item.reach == HERE]
            changed = [*self._here.follow(here, whole), *self._shards.follow(beyond, whole)]
        else:
            changed = self._fleet.follow(beyond, whole)
        if self._recalled != self._time.recalled:  # The notes came later than the changes.
            self._recalled = self._time.recalled
            changed += [item_id for layer in self._layers for item_id in layer.take_again()]
        changed = list(dict.fromkeys(changed))
        for item_id in changed:
            self._choose(item_id)
        return changed

    def _choose(self, item_id: str) -> None:
        """One that has ended hides none that is in force."""
        found = [layer for layer in self._layers if item_id in layer.values]
        found.sort(key=lambda layer: layer.has_ended(item_id))
        if found:
            self.values[item_id] = found[0].values[item_id]
        else:
            self.values.pop(item_id, None)

    def over(self, wall_s: float) -> list[str]:
        """Set at this agent alone, and taken out or ended for a day."""
        known = self._here.items.known.values()
        return [item.id for item in known if _over_since(item) < wall_s - FORGET_AFTER_S]

    def forget(self, ids: Iterable[str]) -> None:
        for item_id in ids:
            self._here.items.known.pop(item_id, None)
            self._here.drop(item_id)
            self._choose(item_id)


class _Layer(Generic[T]):
    """Of one log, and one reach of it."""

    def __init__(
        self,
        name: str,
        items: ChangeMemory,
        parse: Callable[[Change, float], T],
        time: ChangeTime,
    ) -> None:
        self._name = name
        self.items = items
        self._parse = parse
        self._time = time
        self.values: dict[str, T] = {}
        self.faults: dict[str, str] = {}

    def follow(self, items: Sequence[Change], whole: bool) -> list[str]:
        news = self.items.news(items, whole=whole)
        self.items.remember(news)
        changed = [item_id for item_id, item in news.items() if self._take(item_id, item)]
        if whole:
            self._time.keep_only(self._name, self.items.known)
        return changed

    def take_again(self) -> list[str]:
        """As much of their time as is used up may be otherwise."""
        return [name for name in self.values if self._take(name, self.items.known[name])]

    def has_ended(self, item_id: str) -> bool:
        return self._time.has_ended(f"{self._name}{item_id}")

    def drop(self, item_id: str) -> None:
        self.values.pop(item_id, None)
        self._time.forget(f"{self._name}{item_id}")

    def _take(self, item_id: str, item: Change | None) -> bool:
        self.faults.pop(item_id, None)
        if item is None or item.value is None:
            self.drop(item_id)
            return True
        try:
            name, end_s = f"{self._name}{item_id}", ends_at(item)
            ends_mono_s = self._time.ends_mono_s(name, counted_from(item), end_s)
            self.values[item_id] = self._parse(item, ends_mono_s)
        except (KeyError, TypeError, ValueError) as error:
            # Of a newer version, or broken: the last good one stays.
            self.faults[item_id] = repr(error)
            log.error("item.rejected", kind=str(item.kind), id=item_id, fault=repr(error))
            return False
        return True


def _over_since(item: Change) -> float:
    """Wall-clock seconds; inf: it is in force, or that is not known."""
    if item.value is None:
        return item.set_at
    try:
        end_s = ends_at(item)
    except ValueError:
        end_s = None
    return float("inf") if end_s is None else end_s


class Forgetter:
    """Takes out of the agent's own log what was over a day ago; changes of shards stay there for
    agents that were away (OwnBook.collect)."""

    def __init__(
        self,
        forget: Callable[[str, Sequence[str]], Awaitable[None]],
        clock: Clock,
        kept: Sequence[SetItems[Any]],
    ) -> None:
        self._forget = forget
        self._clock = clock
        self._kept = kept

    async def run(self) -> None:
        while True:
            await self._clock.sleep(FORGET_EVERY_S)
            await self.tick()

    async def tick(self) -> None:
        wall_s = self._clock.now().wall_s
        for kept in self._kept:
            over = kept.over(wall_s)[:MAX_FORGOTTEN_AT_ONCE]
            if not over:
                continue
            try:
                await self._forget(kept.kind, over)
            except (Conflict, StoreUnavailable) as error:
                log.warning("changes.not_forgotten", kind=str(kept.kind), detail=str(error))
            else:
                kept.forget(over)


def put(
    held: LogState,
    kind: ChangeKind,
    item_id: str,
    value: Mapping[str, Any] | None,
    asked: ChangeAuthor,
    reach: Reach = HERE,
) -> Edit:
    """`value` None takes it out."""
    after = Change(kind, item_id, reach, value, 0, asked.wall_s, asked.who)
    return Edit(known(held, kind, item_id, reach), after)


def known(held: LogState, kind: ChangeKind, item_id: str, reach: Reach = HERE) -> Change | None:
    """The one of that reach; another of that name may be there, too."""
    wanted = Change(kind, item_id, reach, None, 0, 0.0, "")
    found = (held.items.get(name) for name in ((kind, item_id), apart(wanted)))
    return next((item for item in found if item is not None and item.key == wanted.key), None)


def standing(
    held: LogState, kind: ChangeKind, item_id: str, reaches: Iterable[Reach] = (HERE,)
) -> list[Change]:
    """Of these reaches, those that are not taken out."""
    found = (known(held, kind, item_id, reach) for reach in reaches)
    return [item for item in found if item is not None and item.value is not None]
