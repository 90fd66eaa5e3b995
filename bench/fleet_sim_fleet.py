"""A simulated fleet: so many shards of three agents, in regions, around one model of etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bench.fleet_sim_agent import SimAgent, Spot, joined_to
from bench.fleet_sim_etcd import ModelClient, ModelEtcd
from bench.fleet_sim_net import Network, Traffic, Wire
from bench.fleet_sim_time import VirtualClock
from headgate.base.keyvalue import Put
from headgate.changes.book import SharedBook
from headgate.changes.log_copy import LogCopy
from headgate.changes.model import (
    BEAT,
    HEAD,
    ChangeKind,
    Edit,
    followed_prefixes,
    item_key,
    shard_key,
)
from headgate.changes.reach import Place, parse_reach
from headgate.changes.state import head_bytes, item_bytes
from headgate.fleet.beat import Beat, FleetTiming, beat_bytes
from headgate.rules.drafts import RuleDrafts
from headgate.rules.matching import RuleBook

REGIONS = 50
NEAR_S = 0.0003
"""One way, within a region."""
FAR_S = (0.002, 0.030)
"""One way, to another region."""
CLOCKS_APART_S = 0.2


@dataclass(slots=True)
class Change:
    """A rule that an operator set, and at whom it is in force by now."""

    rule_id: str
    asked_at: float
    wanted: int
    """Agents that it meets."""
    committed_s: float = 0.0
    """From the request on: etcd has it."""
    acknowledged_s: float = 0.0
    """The operator has the answer."""
    took_s: list[float] = field(default_factory=list)
    seen: set[SimAgent] = field(default_factory=set)

    @property
    def is_everywhere(self) -> bool:
        return len(self.took_s) >= self.wanted


class Fleet:
    def __init__(
        self, shards: int, *, seed: int = 1, loss: float = 0.001, beat_s: float = 2.0
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.dice = random.Random(seed)
        self.net = Network(self.dice, loss)
        self.etcd = ModelEtcd(self.net, self.loop)
        self.timing = FleetTiming.of(beat_interval_s=beat_s)
        self.names = [f"c{i % REGIONS:02}/s{i:05}" for i in range(shards)]
        self._to_etcd = [[self._far_s() for _ in self.etcd.members] for _ in range(REGIONS)]
        self.changes: dict[str, Change] = {}
        """Those that are on their way."""
        self.primaries: list[SimAgent] = []
        self.replicas: list[SimAgent] = []
        for index, name in enumerate(self.names):
            self._make_shard(index, name)
        self.book = SharedBook(
            self._client(0, Traffic()),
            VirtualClock(self.loop),
            self.dice.random,
            RuleDrafts(lambda _: {}, new_id=self._new_id),
            new_op=lambda: f"{self.dice.getrandbits(64):x}",
        )

    @property
    def agents(self) -> Sequence[SimAgent]:
        return [*self.primaries, *self.replicas]

    def _far_s(self) -> float:
        return self.dice.uniform(*FAR_S)

    def _new_id(self) -> str:
        return f"f-{self.dice.getrandbits(24):06x}"

    async def fill(self, wide: int) -> None:
        """What there is before: every shard has told of itself, nine of ten have a rule of their
        own (a fleet has 10,000 at most), and some rules reach all."""
        own = [name for place, name in enumerate(self.names) if place % 10]
        reaches = [*(f"shard:{name}" for name in own), *(["fleet"] * wide)]
        model = (await self._set("fleet", self._new_id())).after
        assert model is not None
        n = model.n + 1
        items = [
            replace(model, id=f"g-{place:05}", reach=parse_reach(reach), n=n)
            for place, reach in enumerate(reaches)
        ]
        puts = [Put(item.key, item_bytes(item)) for item in items]
        puts += [Put(shard_key(name), b"{}") for name in self.names]
        for first in range(0, len(puts), 100):
            self.etcd.kept.commit((), puts[first : first + 100])
        self.etcd.kept.commit((), [Put(HEAD, head_bytes(n))])

    def write_disks(self) -> None:
        """As if all had followed so far."""
        clock = VirtualClock(self.loop)
        beat = Beat("nobody", clock.now().wall_s, len(self.names), 2)
        self.etcd.kept.commit((), [Put(BEAT, beat_bytes(beat))])
        for agent in self.agents:
            prefixes = followed_prefixes((agent.spot.place.shard,))
            listing = self.etcd.kept.listing(prefixes)
            agent.disk = LogCopy(listing, prefixes, beat.n, clock.now().wall_s)

    # --- operators -------------------------------------------------------------------------

    async def set_rule(self, reach: str) -> Change:
        """As `headgate rule` does; the clock runs from when it is asked for."""
        met = parse_reach(reach)
        wanted = sum(met.meets(agent.spot.place) for agent in self.agents)
        change = Change(self._new_id(), self.loop.time(), wanted)
        self.changes[change.rule_id] = change
        key = item_key(ChangeKind.RULE, change.rule_id, met)
        await self._set(reach, change.rule_id)
        change.committed_s = self.etcd.items_at[key] - change.asked_at
        change.acknowledged_s = self.loop.time() - change.asked_at
        return change

    async def _set(self, reach: str, rule_id: str) -> Edit:
        raw = {
            "id": rule_id,
            "kind": "ratio",
            "target": "app:batch",
            "ratio": 0.5,
            "for": "24h",
            "reason": "x",
        }
        done = await self.book.make(
            partial(self.book.rules.put, raw=raw, reach=parse_reach(reach)), "operator"
        )
        (change,) = done.changes
        return change

    def _make_shard(self, index: int, name: str) -> None:
        region = index % REGIONS
        primary = self._make_agent(name, 0, region)
        self.primaries.append(primary)
        for member in (1, 2):
            # One of the two in the same region, one in another.
            at = region if member == 1 else (region + 1) % REGIONS
            replica = self._make_agent(name, member, at)
            base_s = NEAR_S if member == 1 else self._far_s()
            wire = Wire(self.net, base_s, replica.traffic, primary.traffic, lambda: primary.up)
            joined_to(replica, primary, wire, self.timing.beat_interval_s)
            self.replicas.append(replica)

    def _make_agent(self, shard: str, member: int, region: int) -> SimAgent:
        host = f"{shard.replace('/', '-')}-{member}"
        place = Place(f"r{region:02}", shard.partition("/")[0], shard, host, "main")
        traffic = Traffic()
        clock = VirtualClock(self.loop, self.dice.uniform(-CLOCKS_APART_S, CLOCKS_APART_S))
        return SimAgent(
            Spot(place, member == 0),
            clock,
            self.dice.random,
            self._client(region, traffic),
            traffic,
            self._applied,
            self.timing,
        )

    def _client(self, region: int, traffic: Traffic) -> ModelClient:
        return ModelClient(self.etcd, self.dice, traffic, self._to_etcd[region])

    def _applied(self, agent: SimAgent, book: RuleBook) -> None:
        for change in self.changes.values():
            if change.rule_id in book and agent not in change.seen:
                change.seen.add(agent)
                change.took_s.append(self.loop.time() - change.asked_at)

    # --- life ------------------------------------------------------------------------------

    async def restart_all(self, *, disks: bool = True) -> None:
        """All at the same moment, as after a roll-out that knows no mercy."""
        for agent in self.agents:
            agent.stop()
            if not disks:
                agent.disk = None
        await asyncio.sleep(0)
        for agent in self.agents:
            await agent.start()

    def stop(self) -> None:
        for agent in self.agents:
            agent.stop()

    # --- looking ---------------------------------------------------------------------------

    def stale(self) -> int:
        return sum(agent.follower.is_stale for agent in self.agents if agent.up)

    def direct(self) -> int:
        """Replicas' agents that follow the store instead of their primary's agent."""
        readers = ((r, r.follower.reader) for r in self.replicas if r.up)
        return sum(reader is not None and reader is not r.primary for r, reader in readers)
