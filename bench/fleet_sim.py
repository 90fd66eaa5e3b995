"""A fleet of 10,000 shards with three agents each, in one process and in its own time.

.venv/bin/python -m bench.fleet_sim [--shards 100,1000,10000] [--fast] [--seconds 30] [--seed 1]
    [--loss 0.001] [--beat 2] [--scenes restart,rest,roles,steady,loss,fallback,cold]

Exits with 1 where a bound of fleet_sim_bounds is broken, and says which. `--fast`: shorter scenes,
without loss and fallback, a beat every 20 s, and feeds that wait for as much longer: the largest
fleet in minutes instead of an hour. Messages at rest are then fewer than with the usual 2 s.

Scenes, in this order:
- restart: all agents start at the same moment, with what they know on their disks. Always played.
- rest: nothing happens; messages per agent.
- roles: no server tells its role for two seconds.
- steady: operators set rules for all (every 6 s) and for single shards (every 0.6 s).
- loss: two of etcd's three members die for a minute.
- fallback: two of a hundred primaries' agents die for a minute.
- cold: as restart, with empty disks. Nobody knows the fleet's size before the store has been heard:
  primaries' agents all turn to it within half a second. This is a stampede, is reported as one
  where it is, and is not bounded.

Real: Mirror, LogFollower, SharedInForce, RuleKeeper, beat, registrar, feed and ChangeBook with all
their timing, and the bytes that agents hand to each other.

Modelled: time (one event loop, no time passes while code runs: an agent's own CPU costs nothing);
the network (delays by region, jitter, losses as retransmissions; never full, never cut); etcd
(one memory of keys behind three members, each a queue; what a request and a told change cost was
measured of etcd 3.4; no elections, no disk that stalls, no snapshots, no limit of its log); disks
of agents (kept in memory, always whole); roles (told by the scene; probes and Shards are left out).

Left out, so nothing here speaks for it:
- FleetStatus: a look a second at every primary's agent would double the time of a run. It spreads
  its words by the same figure and may add 200 commits/s of its own after restart, roles and loss;
  shards/ is filled before the fleet starts, so a beat always counts the whole fleet. Thus also no
  fleet that grows, or whose first agents find an empty store.
- Peers found through members/ (Hearsay): replicas know their primary's agent from the start.
- Views, elections, Patroni's keys, budgets, checks, and promotion or demotion.
- Members that hang or are slow, that are compacted under a watch or wiped, and a store that went
  back; regions that are cut off from each other or from etcd; agents of another version.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf

import structlog

from bench import fleet_sim_scenes as scenes
from bench.fleet_sim_bounds import Told, faults, notes
from bench.fleet_sim_report import report
from bench.fleet_sim_time import run

AWAY_S = 60.0
SCENES = ("restart", "rest", "roles", "steady", "loss", "fallback", "cold")
FAST_SCENES = ("restart", "rest", "roles", "steady", "cold")
FAST_BEAT_S = 20.0
FAST_SECONDS = 5.0
FAST_COLD_S = 15.0


@dataclass(frozen=True, slots=True)
class Asked:
    scenes: tuple[str, ...] = SCENES
    seconds: float = 30.0
    seed: int = 1
    loss: float = 0.001
    beat_s: float = 2.0
    away_s: float = AWAY_S
    beats: int = 5
    """At rest."""
    cold_s: float = inf
    """At most so long the scene is looked at."""


def main() -> None:
    asked, sizes = _asked(sys.argv[1:])
    quieten()
    # Nothing is let go of in a ring that matters here, and looking for rings costs a third.
    gc.disable()
    told = [_played(shards, asked) for shards in sizes]
    print(report(told, beat_s=asked.beat_s))
    for note in notes(told):
        print(note)
    broken = faults(told)
    for fault in broken:
        print(f"BROKEN: {fault}")
    sys.exit(1 if broken else 0)


def _asked(arguments: list[str]) -> tuple[Asked, list[int]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", default="100,1000,10000")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0.001)
    parser.add_argument("--beat", type=float, help="seconds between two beats")
    parser.add_argument("--scenes")
    chosen = parser.parse_args(arguments)
    fast = chosen.fast
    asked = Asked(
        scenes=tuple(chosen.scenes.split(","))
        if chosen.scenes
        else FAST_SCENES
        if fast
        else SCENES,
        seconds=chosen.seconds or (FAST_SECONDS if fast else 30.0),
        seed=chosen.seed,
        loss=chosen.loss,
        beat_s=chosen.beat or (FAST_BEAT_S if fast else 2.0),
        beats=1 if fast else 5,
        cold_s=FAST_COLD_S if fast else inf,
    )
    if unknown := set(asked.scenes) - set(SCENES):
        parser.error(f"no such scenes: {', '.join(sorted(unknown))}; there are {', '.join(SCENES)}")
    return asked, [int(size) for size in chosen.shards.split(",")]


def _played(shards: int, asked: Asked) -> Told:
    begun_s = time.process_time()
    told = run(play(shards, asked))
    spent_s = time.process_time() - begun_s
    print(f"{shards} shards: {spent_s:.0f} s of one core", file=sys.stderr, flush=True)
    return told


def quieten() -> None:
    """Ten thousand agents that say what they see are not to be read by anybody."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


async def play(shards: int, asked: Asked) -> Told:
    gc.collect()
    empty_bytes, told = scenes.resident_bytes(), Told(shards)
    fleet = await scenes.asleep(shards, seed=asked.seed, loss=asked.loss, beat_s=asked.beat_s)
    plays: Mapping[str, Callable[[], Awaitable[object]]] = {
        "restart": lambda: scenes.restart(fleet),
        "rest": lambda: scenes.rest(fleet, asked.beats),
        "roles": lambda: scenes.roles(fleet),
        "steady": lambda: scenes.steady(fleet, asked.seconds, empty_bytes),
        "loss": lambda: scenes.loss(fleet, asked.away_s),
        "fallback": lambda: scenes.fallback(fleet, asked.away_s),
        "cold": lambda: scenes.restart(fleet, disks=False, most_s=asked.cold_s),
    }
    for scene in SCENES:
        if scene in asked.scenes or scene == "restart":
            setattr(told, scene, await plays[scene]())
            _say(told, scene, fleet.loop.time())
    fleet.stop()
    return told


def _say(told: Told, scene: str, at_s: float) -> None:
    """Along the way: the whole takes its time."""
    spent_s = time.process_time()
    where = f"{told.shards} shards, at {at_s:.1f} s, {spent_s:.0f} s of a core"
    print(f"{where}: {scene} {getattr(told, scene)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
