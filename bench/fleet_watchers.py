"""For real: agents' followers on three etcd members, and how soon a rule is in force at all.

.venv/bin/python -m bench.fleet_watchers [--agents 200] [--changes 40] [--between-s 0.5]

Each follower has an EtcdStore, a Mirror, a RuleKeeper and takes part in the beat, as an agent
that follows the store itself does. They share one process, and with etcd's members one machine:
what is measured includes all of their work, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog
import uvloop
from tests.fixtures.etcd import EtcdCluster, Member, etcd_store
from tests.fixtures.memory_store import MemoryStore

from bench.fleet_sim_scenes import Spread
from bench.load import cpu_s
from bench.report import table
from headgate.base.clock import Dice, SystemClock
from headgate.changes.beat import LogBeat
from headgate.changes.book import SharedBook
from headgate.changes.follower import LogFollower
from headgate.changes.inforce import ChangeShelf
from headgate.changes.mirror import Mirror
from headgate.changes.model import BEAT, ITEMS, followed_prefixes
from headgate.changes.reach import EVERYWHERE, Place
from headgate.rules.drafts import RuleDrafts
from headgate.rules.matching import RuleBook
from headgate.rules.service import RuleKeeper

PREFIX = "/bench/"
STARTED_AT_ONCE = 10
UP_WITHIN_S, IN_FORCE_WITHIN_S = 60.0, 30.0
GOAL_S = 1.0
"""R84."""


@dataclass(slots=True)
class Change:
    rule_id: str
    asked_at: float
    acknowledged_s: float = 0.0
    took_s: list[float] = field(default_factory=list)
    all_have_it: asyncio.Event = field(default_factory=asyncio.Event)


class Watcher:
    """As much of an agent as hears of rules and puts them in force."""

    def __init__(
        self, index: int, endpoints: list[str], applied: Callable[[RuleBook], None]
    ) -> None:
        clock, roll = SystemClock(), Dice(index).roll
        self.place = Place("r", "c", f"c/s{index:04}", f"host-{index:04}", "main")
        self.store = etcd_store(endpoints, PREFIX)
        self.mirror = Mirror(clock)
        self.follower = LogFollower(
            self.mirror,
            clock,
            roll,
            sources=lambda: (self.store,),
            prefixes=lambda: followed_prefixes((self.place.shard,)),
        )
        self.beat = LogBeat(self.store, self.follower, clock, roll, by=self.place.host)
        self.state = MemoryStore()
        self.keeper = RuleKeeper(self.state, clock, applied, lambda _: {})
        self._shelf = ChangeShelf()
        self._news = asyncio.Event()
        self.follower.watch(self._note)

    async def run(self) -> None:
        await self.state.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.run())
            group.create_task(self.beat.run())
            group.create_task(self._apply_news())

    def _note(self, changed: frozenset[str]) -> None:
        if changed != {BEAT}:
            self._news.set()

    async def _apply_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            items = self._shelf.read(self.mirror.entries(ITEMS))
            await self.keeper.follow(items, (self.place,))


class Bench:
    def __init__(self, cluster: EtcdCluster, agents: int) -> None:
        self.cluster = cluster
        self.change: Change | None = None
        self._have: set[int] = set()
        endpoints = cluster.endpoints
        self.watchers = [Watcher(i, endpoints, self._applied(i)) for i in range(agents)]
        self.desk = etcd_store(endpoints, PREFIX)
        self.book = SharedBook(self.desk, SystemClock(), Dice(0).roll, RuleDrafts(lambda _: {}))

    def _applied(self, index: int) -> Callable[[RuleBook], None]:
        def note(book: RuleBook) -> None:
            change = self.change
            if change is not None and change.rule_id in book and index not in self._have:
                self._have.add(index)
                change.took_s.append(time.monotonic() - change.asked_at)
                if len(self._have) == len(self.watchers):
                    change.all_have_it.set()

        return note

    async def set_rule(self, rule_id: str) -> Change:
        self._have = set()
        self.change = change = Change(rule_id, time.monotonic())
        raw = {"id": rule_id, "kind": "ratio", "target": "app:batch", "ratio": 0.5, "for": "1h"}
        draft = partial(self.book.rules.put, raw={**raw, "reason": "x"}, reach=EVERYWHERE)
        await self.book.make(draft, "bench")
        change.acknowledged_s = time.monotonic() - change.asked_at
        async with asyncio.timeout(IN_FORCE_WITHIN_S):
            await change.all_have_it.wait()
        return change

    async def start(self) -> list[asyncio.Task[None]]:
        """A few at a time: on as many hosts they would not take turns on one core."""
        tasks = []
        for first in range(0, len(self.watchers), STARTED_AT_ONCE):
            batch = self.watchers[first : first + STARTED_AT_ONCE]
            tasks += [asyncio.create_task(watcher.run()) for watcher in batch]
            async with asyncio.timeout(UP_WITHIN_S):
                while any(one.follower.is_stale for one in batch):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        return tasks


async def play(cluster: EtcdCluster, agents: int, changes: int, between_s: float) -> None:
    bench = Bench(cluster, agents)
    tasks = await bench.start()
    try:
        await bench.set_rule("f-first0")  # Makes the store's own keys.
        spent_s, begun_s = await asyncio.to_thread(_spent_s, cluster), time.monotonic()
        made = []
        for index in range(changes):
            made.append(await bench.set_rule(f"f-{index:06x}"))
            await asyncio.sleep(between_s)
        passed_s = time.monotonic() - begun_s
        now_s = await asyncio.to_thread(_spent_s, cluster)
        used = [(now - then) / passed_s for now, then in zip(now_s, spent_s, strict=True)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for store in (bench.desk, *(watcher.store for watcher in bench.watchers)):
            await store.close()
    print(report(agents, made, used))
    slowest = Spread.of([max(change.took_s) for change in made])
    if slowest.p99 > GOAL_S:
        sys.exit(f"p99 until in force at all is {slowest.p99:.3f} s, and may be {GOAL_S:g} s")


def _spent_s(cluster: EtcdCluster) -> list[float]:
    """Of a core: ours first, then the members'."""
    return [cpu_s(os.getpid()), *(_member_cpu_s(member) for member in cluster.members)]


def _member_cpu_s(member: Member) -> float:
    url = f"http://127.0.0.1:{member.ports.watching}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    named = "process_cpu_seconds_total "
    return next(float(line.removeprefix(named)) for line in lines if line.startswith(named))


def report(agents: int, made: list[Change], used: list[float]) -> str:
    everywhere = Spread.of([max(change.took_s) for change in made])
    each = Spread.of([took for change in made for took in change.took_s])
    told = Spread.of([change.acknowledged_s for change in made])
    rows = [
        ["acknowledged to the operator", *_figures(told)],
        ["in force at an agent", *_figures(each)],
        ["in force at all of them", *_figures(everywhere)],
    ]
    figures = table(["from the request until", "count", "p50", "p99", "max"], rows)
    members = statistics.mean(used[1:])
    return (
        f"{agents} agents' watchers on 3 etcd members, {len(made)} changes\n\n{figures}\n\n"
        f"CPU: {used[0]:.0%} of a core for all watchers, {members:.0%} for each member; "
        f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def _figures(spread: Spread) -> list[str]:
    return [
        f"{spread.count:,}",
        *(f"{figure * 1000:.0f} ms" for figure in (spread.p50, spread.p99, spread.most)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--between-s", type=float, default=0.5)
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with EtcdCluster.started(members=3) as cluster:
        coroutine = play(cluster, chosen.agents, chosen.changes, chosen.between_s)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(coroutine)


if __name__ == "__main__":
    main()
