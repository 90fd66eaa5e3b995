"""Where sessions go: fixed servers, or those of a shard as its agents see it.

    settings ──────────────────────► FixedTargets ─┐
    agents' GET …/shard ──elect──► FollowedTargets ─┴─► Addresses (DNS) ──► Relay.put_targets

A failover needs no restart: the next look at the shard puts other targets, and the relay moves
sessions between two transactions. Names are resolved beside the loop, with a deadline; an address
that was good stays until a better one is known. Without any agent everything stays as it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import structlog

from headgate.base.ports import Clock
from headgate.check.reasons import duration
from headgate.errors import PeerFailed, RelayFault
from headgate.proxy.agents import AgentApi, Agents
from headgate.proxy.beside import Beside
from headgate.proxy.following import (
    Election,
    Fitness,
    Led,
    ServerUse,
    ShardReport,
    ToldMember,
    ToldReading,
    elect,
    fitness_of,
    place_of,
)
from headgate.proxy.model import FollowTerms, ServerTerms, TlsTerms
from headgate.proxy.ports import PartState, Relay, ServerTarget, Targets

log = structlog.get_logger()

RESOLVE_S = 10.0
"""A name is looked up again that often; it may have moved."""
RESOLVE_TIMEOUT_S = 2.0
MAX_NAMES = 256
MAX_TARGETS = 64
ASK_TIMEOUT_S = 1.5
MAX_SHARD_BYTES = 4 * 1024 * 1024
MAX_BACKOFF_S = 2.0
KEPT_FILE = "primary-kept.json"

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class SystemLookup:
    """The system's resolver, which knows no deadline: one thread a name, however long it hangs."""

    def __init__(self) -> None:
        self._beside: dict[str, Beside] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        beside = self._beside.setdefault(host, Beside(f"looking {host} up"))
        kind, tcp = socket.SOCK_STREAM, socket.IPPROTO_TCP
        found = await beside.run(lambda: socket.getaddrinfo(host, port, type=kind, proto=tcp))
        return list(dict.fromkeys(str(info[4][0]) for info in found))


class Addresses:
    """Of names, kept: a query never waits, and a look-up that hangs is one task, not many."""

    def __init__(self, clock: Clock, lookup: Lookup | None = None) -> None:
        self._clock = clock
        self._lookup = lookup or SystemLookup()
        self._known: dict[tuple[str, int], str] = {}
        self._due: dict[tuple[str, int], float] = {}
        self._looking: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.faults: dict[str, str] = {}

    def of(self, host: str, port: int) -> str | None:
        """The last good one; None: none was ever found. Looks it up again when that is due."""
        if host.startswith("/") or _is_literal(host):
            return host
        place = (host, port)
        now = self._clock.now().mono_s
        due = place not in self._looking and now >= self._due.get(place, 0.0)
        if due and len(self._due) < MAX_NAMES:
            self._due[place] = now + RESOLVE_S
            self._looking[place] = asyncio.ensure_future(self._resolve(place))
        return self._known.get(place)

    async def settle(self) -> None:
        """Until every look-up that is under way has ended; each has its deadline."""
        while self._looking:
            await asyncio.gather(*self._looking.values())

    async def _resolve(self, place: tuple[str, int]) -> None:
        host, _ = place
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                found = await self._lookup(*place)
        except TimeoutError:
            self._failed(place, f"no answer in {RESOLVE_TIMEOUT_S:g} s")
        except (OSError, UnicodeError) as error:
            self._failed(place, str(getattr(error, "strerror", None) or error))
        else:
            self.faults.pop(host, None)
            if found and self._known.get(place) not in found:
                self._known[place] = found[0]
        finally:
            self._looking.pop(place, None)

    def _failed(self, place: tuple[str, int], detail: str) -> None:
        host, kept = place[0], self._known.get(place)
        if host not in self.faults:
            log.warning("targets.unresolved", host=host, detail=detail, stays=kept)
        self.faults[host] = detail
        if kept is None:
            self._due[place] = self._clock.now().mono_s + 1.0

    async def close(self) -> None:
        for task in list(self._looking.values()):
            task.cancel()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def target_id(name: str, address: str, port: int) -> int:
    """The same as long as it is the same server at the same address, in every process."""
    digest = hashlib.blake2b(f"{name}\n{address}\n{port}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


class Putter:
    """Puts targets that differ from those that are there."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.targets = Targets()
        self.fault = ""
        self.changes = 0

    def put(self, targets: Targets) -> bool:
        """Whether there is any server to send sessions to."""
        if targets == self.targets and not self.fault:
            return True
        try:
            self._relay.put_targets(targets)
        except RelayFault as fault:
            if str(fault) != self.fault:
                log.error("targets.rejected", detail=str(fault))
            self.fault = str(fault)
            return False
        self.targets, self.fault = targets, ""
        self.changes += 1
        log.info("targets.put", targets=[_shown(target) for target in targets.targets])
        return True


def _shown(target: ServerTarget) -> str:
    roles = [w for w, on in (("primary", target.primary), ("replica", target.replica)) if on]
    where = target.address if target.address.startswith("/") else f"{target.address}:{target.port}"
    return f"{target.name} {where} ({' and '.join(roles) or 'no new sessions'})"


# --- fixed ---------------------------------------------------------------------------------------


class FixedTargets:
    name = "targets"

    def __init__(
        self,
        relay: Relay,
        servers: Sequence[ServerTerms],
        clock: Clock,
        *,
        replicas_or_primary: bool = True,
        grace_s: float = 10.0,
        lookup: Lookup | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._clock = clock
        self._fallback, self._grace_s = replicas_or_primary, grace_s
        self._addresses = Addresses(clock, lookup)
        self._putter = Putter(relay)

    def adopt(self, servers: Sequence[ServerTerms]) -> None:
        self._servers = tuple(servers)

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(1.0)

    async def look(self) -> None:
        found = self._found()
        if len(found) < len(self._servers):
            await self._addresses.settle()
            found = self._found()
        if found:
            self._putter.put(Targets(tuple(found), self._fallback, self._grace_s))

    def _found(self) -> list[ServerTarget]:
        return [
            ServerTarget(
                target_id(server.name, address, server.port), server.name, address, server.port,
                primary=not server.replica, replica=server.replica,
                weight=server.weight, tls=_named(server.tls, server.host),
            )
            for server in self._servers
            if (address := self._addresses.of(server.host, server.port)) is not None
        ]  # fmt: skip

    def state(self) -> PartState:
        known = {target.name for target in self._putter.targets.targets}
        missing = [server.name for server in self._servers if server.name not in known]
        faults = [f"{host}: {why}" for host, why in self._addresses.faults.items()]
        trouble = "; ".join(filter(None, [self._putter.fault, *faults]))
        told = ", ".join(map(_shown, self._putter.targets.targets)) or "no server"
        summary = f"{told}{f'; {trouble}' if trouble else ''}"
        return PartState(self.name, not missing and not trouble, summary, figures={
            "targets": len(known), "changes_total": self._putter.changes,
        })  # fmt: skip

    async def close(self) -> None:
        await self._addresses.close()


def _named(tls: TlsTerms, host: str) -> TlsTerms:
    """The certificate is that of the name that the settings say, not of an address."""
    if tls.mode == "off" or tls.name or host.startswith("/"):
        return tls
    return TlsTerms(tls.mode, tls.ca, tls.cert, tls.key, host)


# --- followed ------------------------------------------------------------------------------------


class _Sight(NamedTuple):
    """The shard, as it is gone along with."""

    told: ShardReport
    fitness: Mapping[str, Fitness]


class FollowedTargets:
    name = "targets"

    def __init__(
        self,
        relay: Relay,
        agents: Agents,
        terms: FollowTerms,
        clock: Clock,
        directory: Path | None = None,
        *,
        lookup: Lookup | None = None,
    ) -> None:
        """`directory`: where the term is kept, so that a restart does not believe the past."""
        self._agents = agents
        self._terms = terms
        self._clock = clock
        self._kept = None if directory is None else directory / KEPT_FILE
        self._addresses = Addresses(clock, lookup)
        self._putter = Putter(relay)
        self._led = Led()
        self._sight: _Sight | None = None
        self._doubt = ""
        self._doubt_since: float | None = None
        self._failures = 0
        self._unplaced: tuple[str, ...] = ()

    def adopt(self, terms: FollowTerms) -> None:
        self._terms = terms

    @property
    def primary(self) -> str:
        return self._led.primary

    async def run(self) -> None:
        await self.recall()
        while True:
            await self.look()
            pause_s = self._terms.interval_s * 2.0 ** min(self._failures, 5)
            await self._clock.sleep(min(max(MAX_BACKOFF_S, self._terms.interval_s), pause_s))

    # --- one look --------------------------------------------------------------------------

    async def look(self) -> None:
        tellings = await self._ask_all()
        if not tellings:
            self._doubted("no agent answers")
            self._failures += 1
            return
        self._failures = 0
        self._follow(elect(self._led, tellings, self._clock.now().mono_s))
        await self._put()

    def _follow(self, election: Election) -> None:
        before, self._led = self._led, election.led
        if election.by is None:
            self._doubted(election.doubt)
            return
        self._doubted("")
        told = election.by
        self._sight = _Sight(told, {m.name: fitness_of(m) for m in told.members})
        if (before.primary, before.term) != (self._led.primary, self._led.term):
            log.warning("targets.primary", shard=told.shard, was=before.primary or None,
                        now=self._led.primary, term=self._led.term, agent=told.agent)  # fmt: skip
            self._keep()

    def _doubted(self, why: str) -> None:
        if why and why != self._doubt:
            log.warning("targets.kept", detail=why, primary=self._led.primary or None)
        if why and self._doubt_since is None:
            self._doubt_since = self._clock.now().mono_s
        self._doubt_since = self._doubt_since if why else None
        self._doubt = why

    async def _put(self) -> None:
        found = self._found()
        if not found:
            await self._addresses.settle()
            found = self._found()
        if found:
            terms = self._terms
            self._putter.put(Targets(tuple(found), terms.replicas_or_primary, terms.grace_s))

    def _found(self) -> list[ServerTarget]:
        if self._sight is None:
            return []
        told, unplaced, found = self._sight.told, [], []
        ordered = sorted(told.members, key=lambda m: (m.name != self._led.primary, m.name))
        for member in ordered[:MAX_TARGETS]:
            fitness = self._sight.fitness[member.name]
            if member.name != self._led.primary and fitness.standing is ServerUse.GONE:
                continue
            target = self._target(member, fitness)
            if target is None:
                unplaced.append(member.name)
            else:
                found.append(target)
        self._unplaced = tuple(unplaced)
        return found

    def _target(self, member: ToldMember, fitness: Fitness) -> ServerTarget | None:
        server = self._place(member)
        address = self._addresses.of(server.host, server.port) if server is not None else None
        if server is None or address is None:
            return None
        primary = member.name == self._led.primary
        return ServerTarget(
            target_id(member.name, address, server.port), member.name, address, server.port,
            primary=primary, replica=not primary and fitness.standing is ServerUse.TAKES,
            weight=server.weight, tls=_named(server.tls, server.host),
        )  # fmt: skip

    def _place(self, member: ToldMember) -> ServerTerms | None:
        """As the settings have it; else as the shard does."""
        for server in self._terms.servers:
            if server.name == member.name:
                return server
        assert self._sight is not None
        found = place_of(member, self._sight.told, self._terms.port)
        return None if found is None else ServerTerms(member.name, *found, tls=self._terms.tls)

    # --- requests --------------------------------------------------------------------------

    async def _ask_all(self) -> list[ShardReport]:
        """From all of them: only two answers side by side show which one is out of date."""
        found = await asyncio.gather(*(self._ask(line) for line in self._agents.lines()))
        return [told for told in found if told is not None]

    async def _ask(self, line: AgentApi) -> ShardReport | None:
        path = f"/v1/databases/{quote(self._terms.database, safe='')}/shard"
        try:
            reply = await line.ask("GET", path, timeout_s=ASK_TIMEOUT_S, max_bytes=MAX_SHARD_BYTES)
            if reply.status != 200:
                return None
            told = read_shard(json.loads(reply.body), line.url)
        except (PeerFailed, ValueError, KeyError, TypeError, AttributeError):
            return None
        return told if self._terms.shard in (None, told.shard) else None

    # --- kept over a restart ---------------------------------------------------------------

    async def recall(self) -> None:
        if self._kept is None:
            return
        try:
            kept = json.loads(await asyncio.to_thread(self._kept.read_bytes))
            primary, term, past = kept["primary"], kept["term"], kept["past"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("targets.kept_unreadable", file=str(self._kept), detail=str(error))
            return
        if isinstance(primary, str) and isinstance(term, int | None) and isinstance(past, str):
            self._led = Led(primary, term, past)

    def _keep(self) -> None:
        if self._kept is None:
            return
        new = self._kept.with_suffix(".new")
        kept = {"primary": self._led.primary, "term": self._led.term, "past": self._led.past}
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps(kept).encode())
            new.rename(self._kept)
        except OSError as error:
            log.warning("targets.unkept", file=str(self._kept), detail=error.strerror)

    # --- state -----------------------------------------------------------------------------

    def state(self) -> PartState:
        since_s = None
        if self._doubt_since is not None:
            since_s = self._clock.now().mono_s - self._doubt_since
        told = ", ".join(map(_shown, self._putter.targets.targets)) or "no server"
        trouble = "; ".join(filter(None, self._troubles(since_s)))
        healthy = bool(self._putter.targets.targets) and not trouble
        summary = f"{told}{f'; {trouble}' if trouble else ''}"
        return PartState(self.name, healthy, summary, since_s, {
            "primary": self._led.primary or None,
            "term": self._led.term,
            "targets": len(self._putter.targets.targets),
            "replicas": sum(target.replica for target in self._putter.targets.targets),
            "changes_total": self._putter.changes,
        })  # fmt: skip

    def _troubles(self, since_s: float | None) -> list[str]:
        fitness = self._sight.fitness if self._sight is not None else {}
        unfit = [
            f"{name} {one.standing.value}: {one.why}"
            for name, one in fitness.items()
            if one.standing is not ServerUse.TAKES and name != self._led.primary
        ]
        doubt = f"for {duration(since_s or 0.0)}: {self._doubt}" if self._doubt else ""
        unplaced = ""
        if self._unplaced:
            names = ", ".join(self._unplaced)
            unplaced = (
                f"the address of {names} is not known: name it among the servers, or set a port"
            )
        faults = [f"{host}: {why}" for host, why in self._addresses.faults.items()]
        return [doubt, unplaced, self._putter.fault, *faults, *unfit]

    async def close(self) -> None:
        await self._addresses.close()


def read_shard(document: Mapping[str, Any], agent: str) -> ShardReport:
    """shard/api.ShardDoc, as far as it matters here; ValueError and its like for what is none."""
    return ShardReport(
        agent=agent,
        shard=_text(document, "shard"),
        standing=_text(document, "state"),
        primary=document["primary"],
        detail=_text(document, "detail"),
        members=tuple(_read_member(one, agent) for one in document["members"][:256]),
    )


def _read_member(document: Mapping[str, Any], agent: str) -> ToldMember:
    return ToldMember(
        name=_text(document, "member"),
        # A member beside the agent itself may not know its own address; we have called it there.
        url=_text(document, "url") or (agent if document["here"] else ""),
        role=document["role"],
        term=document["term"] if isinstance(document["term"], int) else None,
        reachable=document["reachable"] is True,
        problem=_text(document, "problem"),
        skipped=document["skip"] is not None,
        upstream=_text(document, "upstream"),
        upstream_member=document["upstream_member"],
        labels={str(key): str(value) for key, value in document["labels"].items()},
        readings=tuple(
            ToldReading(_text(one, "metric"), _text(one, "unit"), _text(one, "state"))
            for one in document["readings"]
        ),
        skipped_metrics={
            str(key): str(value) for key, value in document["skipped_metrics"].items()
        },
    )


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is no text")
    return value
