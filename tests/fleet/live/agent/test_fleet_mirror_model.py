"""A primary's mirror and a replica's, fed in any order by the store and by each other."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import Changes, Entry, KeyEvent
from headgate.changes.mirror import Mirror
from headgate.changes.model import HEAD
from headgate.errors import Compacted
from tests.changes.fleetfakes import PREFIXES, item, set_items, write_beat
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_log import KeptInMemory

STEPS = (
    *("set", "lift", "beat", "primary", "half", "down", "marked", "straight", "half straight"),
    *("list", "compact", "twice", "recall"),
)


class World:
    """Nothing waits in it: every step is done when it returns."""

    def __init__(self) -> None:
        self.kept = KeptInMemory(max_log_commits=6)
        clock = HandClock()
        self.primary = Mirror(clock, max_log_records=4)
        self.replica = Mirror(clock, max_log_records=4)
        self.listings = 0
        self.mark = 0
        """Up to which the replica was told by the primary; 0: by revision."""
        for one in (self.primary, self.replica):
            self.list(one)

    def list(self, mirror: Mirror) -> None:
        self.listings += 1
        mirror.adopt(self.kept.listing((HEAD, *PREFIXES)), PREFIXES)

    def from_store(self, mirror: Mirror, *, half: bool = False) -> None:
        try:
            watch = self.kept.open_watch(PREFIXES, mirror.revision)
        except Compacted:
            self.list(mirror)
            return
        events, revision = tuple(watch.pending), self.kept.revision
        self.kept.drop_watch(watch)
        mirror.apply(halved(events) if half and events else Changes(events, revision))

    def from_primary(self, mark: int = 0) -> None:
        try:
            changes = at_once(self.primary, self.replica.revision, mark)
        except Compacted:
            listing = self.primary.listing((HEAD, *PREFIXES))
            self.replica.adopt(listing, PREFIXES, authoritative=False)
        else:
            self.replica.apply(changes)
        self.mark = self.primary.feed.mark

    def recall(self) -> None:
        """The replica's agent is started again, from its disk."""
        copy = self.replica.copy(0.0)
        self.replica, self.mark = Mirror(HandClock(), max_log_records=4), 0
        self.replica.recall(copy)

    def from_primary_twice(self) -> None:
        self.from_primary()
        self.from_primary()

    def step(self, name: str, which: int) -> None:
        steps: dict[str, Callable[[], object]] = {
            "set": lambda: set_items(self.kept, item(f"f-{which}"), item(f"f-{which + 1}")),
            "lift": lambda: set_items(self.kept, item(f"f-{which}", value=None)),
            "beat": lambda: write_beat(self.kept),
            "primary": lambda: self.from_store(self.primary),
            "half": lambda: self.from_store(self.primary, half=True),
            "down": self.from_primary,
            "marked": lambda: self.from_primary(self.mark),
            "straight": lambda: self.from_store(self.replica),
            "half straight": lambda: self.from_store(self.replica, half=True),
            "recall": self.recall,
            "list": lambda: self.list(self.primary),
            "compact": lambda: self.kept.compact(self.kept.revision),
            "twice": self.from_primary_twice,
        }
        steps[name]()


def halved(events: tuple[KeyEvent, ...]) -> Changes:
    """As etcd's watches tell it: of the newest commit one piece, and not that it is whole."""
    newest = events[-1].revision
    before = [event for event in events if event.revision < newest]
    piece = next(event for event in events if event.revision == newest)
    return Changes((*before, piece), newest - 1)


def at_once(mirror: Mirror, revision: int, mark: int) -> Changes:
    """Without waiting, and so without a loop."""
    store_id = mirror.store_id
    try:
        mirror.changes_after(revision, PREFIXES, 0.0, store_id=store_id, mark=mark).send(None)
    except StopIteration as end:
        changes = end.value
        assert isinstance(changes, Changes)
        return changes
    raise AssertionError("it waits")


def contents(entries: object) -> dict[str, Entry]:
    return {entry.key: entry for entry in entries}  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=40))
def test_whichever_agent_is_followed_in_between_all_end_with_what_the_store_has(
    steps: list[tuple[str, int]],
) -> None:
    """Back and forth between an agent and the store: no gap, no return of the old (R84, R87)."""
    world = World()
    for name, which in steps:
        revision, n = world.replica.revision, world.replica.n
        world.step(name, which)
        assert world.replica.revision >= revision
        assert world.replica.n >= n
    world.from_store(world.primary)
    world.from_primary()
    there = contents(world.kept.listing(PREFIXES).entries)
    assert contents(world.primary.entries()) == there
    assert contents(world.replica.entries()) == there
    assert world.replica.went_back is None
    assert world.primary.n == world.replica.n
