"""R164 under faults: agents are killed, links cut and messages lost, while rules come and go.

Nobody's disk is lost here, so at the end everything that was ever acknowledged counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headgate.base.ports import Store
from headgate.changes.state import ChangeMade
from headgate.store.sqlite import SqliteStore
from tests.changes.exchange_world import Agent, Net, pass_s, promote
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_store import MemoryStore

NAMES = ("db-a", "db-b", "db-c")
STEPS = 60
FATES = ("", "", "lost", "answer lost", "twice", "late")


@dataclass
class Acknowledged:
    """What someone was told is so."""

    everywhere: bool
    """With a copy at every agent that was known."""
    lifted: bool


@dataclass
class Drill:
    roll: random.Random
    agents: list[Agent]
    net: Net
    clock: HandClock
    leader: Agent
    told: dict[str, Acknowledged] = field(default_factory=dict)
    on_disk: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    """As it was acknowledged last."""
    made: int = 0
    promotions: int = 0

    async def step(self) -> None:
        deeds: list[tuple[int, Callable[[], object]]] = [
            (8, self.put),
            (5, self.lift),
            (2, self.extend),
            (2, self.promote),
            (2, self.restart_one),
            (2, self.cut_one),
            (2, self.mend),
            (3, self.wait),
            (2, self.garble),
        ]
        weights = [weight for weight, _ in deeds]
        [(_, deed)] = self.roll.choices(deeds, weights)
        await deed()  # type: ignore[misc]
        await self.clock.advance(0.001)

    # --- operators ---------------------------------------------------------------------------

    async def put(self) -> None:
        self.made += 1
        name = f"r{self.made}"
        done = await self.leader.put(name, f"job{self.made}")
        self.told[name] = Acknowledged(is_everywhere(done), lifted=False)

    async def lift(self) -> None:
        if standing := self.standing():
            name = self.roll.choice(standing)
            done = await self.leader.lift(name)
            self.told[name] = Acknowledged(is_everywhere(done), lifted=True)

    async def extend(self) -> None:
        if standing := self.standing():
            name, reason = self.roll.choice(standing), f"changed {self.roll.random()}"
            await self.leader.patch(name, reason=reason)
            self.reasons[name] = reason

    def standing(self) -> list[str]:
        """Those that its leader knows of. One that was lifted, and whose leader does not know of
        that, is left alone: who changes it again has it count again."""
        known = self.leader.in_force_now()
        return [name for name, told in self.told.items() if name in known and not told.lifted]

    # --- faults --------------------------------------------------------------------------------

    async def promote(self) -> None:
        """The leader is killed, and another one leads that knows of nothing since."""
        old = self.leader
        others = [one for one in self.agents if one is not old and one.is_up]
        if not others:
            return
        await old.kill()
        self.leader = self.roll.choice(others)
        self.promotions += 1
        self.check_acknowledged_everywhere()
        promote(self.leader, self.agents)

    def check_acknowledged_everywhere(self) -> None:
        known = self.leader.in_force_now()
        for name, told in self.told.items():
            if told.everywhere:
                assert (name in known) is not told.lifted, (name, told)

    async def restart_one(self) -> None:
        if down := [one for one in self.agents if not one.is_up]:
            one = self.roll.choice(down)
            await one.restart()
            promote(self.leader, self.agents)

    async def cut_one(self) -> None:
        self.net.cut.add((self.leader.name, self.roll.choice(NAMES)))

    async def mend(self) -> None:
        self.net.cut.clear()
        for one in self.agents:
            if one.is_up:
                await self.net.deliver_late(one)
                break

    async def garble(self) -> None:
        self.net.fates = [self.roll.choice(FATES) for _ in range(6)]

    async def wait(self) -> None:
        await pass_s(self.clock, self.roll.choice([0.1, 1.0, 6.0]), on_disk=self.on_disk)

    async def heal(self) -> None:
        self.net.fates.clear()
        await self.mend()
        for one in self.agents:
            if not one.is_up:
                await one.restart()
        promote(self.leader, self.agents)
        await pass_s(self.clock, 30.0, on_disk=self.on_disk)
        while self.on_disk and len({one.digest for one in self.agents}) > 1:
            await pass_s(self.clock, 1.0, on_disk=True)


def is_everywhere(done: ChangeMade) -> bool:
    assert done.copies is not None
    assert done.copies.of == 2
    return done.copies.have == 2


async def drilled(seed: int, folder: Path | None) -> Drill:
    net, clock = Net(), HandClock()
    found = []
    for name in NAMES:
        opened = store_of(folder, name)
        one = Agent(net, name, clock, store=opened())
        one.open_store = opened if folder is not None else None
        found.append(await one.start())
    drill = Drill(random.Random(seed), found, net, clock, found[0], on_disk=folder is not None)
    promote(found[0], found)
    await settle()
    return drill


def store_of(folder: Path | None, name: str) -> Callable[[], Store]:
    return MemoryStore if folder is None else lambda: SqliteStore(folder / f"{name}.db")


async def run(drill: Drill, steps: int) -> None:
    try:
        for _ in range(steps):
            await drill.step()
        await drill.heal()
        digests = {one.digest for one in drill.agents}
        assert len(digests) == 1
        for one in drill.agents:
            known = one.in_force_now()
            lost = [n for n, told in drill.told.items() if not told.lifted and n not in known]
            risen = [n for n, told in drill.told.items() if told.lifted and n in known]
            assert (lost, risen) == ([], []), one.name
            for name, reason in drill.reasons.items():
                item = one.book.held.rule(name)
                assert item is not None and item.value is not None
                assert drill.told[name].lifted or item.value["reason"] == reason
    finally:
        for one in drill.agents:
            await one.stop()


@pytest.mark.parametrize("seed", range(12))
async def test_no_acknowledged_rule_is_lost_and_none_rises_from_the_dead(seed: int) -> None:
    drill = await drilled(seed, None)
    await run(drill, STEPS)
    assert drill.told


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(100, 400))
async def test_the_same_for_long(seed: int) -> None:
    await run(await drilled(seed, None), 5 * STEPS)


@pytest.mark.parametrize("seed", range(2))
async def test_the_same_with_logs_on_disk(seed: int, tmp_path: Path) -> None:
    await run(await drilled(seed, tmp_path), STEPS)
