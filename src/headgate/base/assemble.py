"""What every room of an agent is built with.   Settings ──assemble──► AgentContext ──► each room

Reads files that settings name; connects to nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headgate.base.clock import Dice, SystemClock, boot_now
from headgate.base.ports import Clock, PeerLink, Store
from headgate.changes.reach import Place
from headgate.changes.time import ChangeTime
from headgate.errors import Fault, InvalidSettings
from headgate.settings.agent import Settings
from headgate.settings.sections import AgentSettings
from headgate.shard.peers import PeerAccess, load_access, open_link
from headgate.store.sqlite import SqliteStore, TemporaryStore
from headgate.tracing.assemble import assemble as assemble_tracer
from headgate.tracing.traced import traced_link, traced_store

if TYPE_CHECKING:
    from headgate.tracing.spans import OtelTracer

Roll = Callable[[], float]


@dataclass(slots=True)
class AgentContext:
    settings: Settings
    """In force. A reload replaces them, except the sections that wait for a restart."""
    clock: Clock
    roll: Roll
    time: ChangeTime
    """One for all rooms: by it, changes end."""
    tracer: OtelTracer | None
    store: Store
    access: PeerAccess

    @property
    def agent(self) -> AgentSettings:
        """Never replaced."""
        return self.settings.agent

    def places(self) -> list[Place]:
        return places_of(self.settings)

    def open_link(self, url: str) -> PeerLink:
        """The link to another agent; the caller closes it."""
        tracer, sender = self.tracer, self.agent.name
        if tracer is None:
            return open_link(url, self.access, sender=sender, now=self.clock.now)
        link = open_link(
            url,
            self.access,
            sender=sender,
            now=self.clock.now,
            traceparent=tracer.traceparent,
        )
        return traced_link(link, tracer)


def assemble(settings: Settings, clock: Clock | None, dice: Dice | None) -> AgentContext:
    clock = clock or SystemClock()
    tracer, store = assemble_tracer(settings, clock), store_of(settings.agent)
    return AgentContext(
        settings,
        clock,
        (dice or Dice()).roll,
        ChangeTime(clock, boot_now),
        tracer,
        store if tracer is None else traced_store(store, tracer),
        peer_access(settings),
    )


def store_of(agent: AgentSettings) -> Store:
    return TemporaryStore() if agent.state is None else SqliteStore(agent.state)


def peer_access(settings: Settings) -> PeerAccess:
    peers = settings.peers
    return load_access(token_file=peers.token_file, ca=peers.ca, cert=peers.cert, key=peers.key)


def places_of(settings: Settings) -> list[Place]:
    """The place of each database of this agent in the fleet."""
    fleet, host = settings.fleet, settings.agent.name
    region, cluster = ("", "") if fleet is None else (fleet.region, fleet.cluster)
    return [
        Place(region, cluster, database.shard or "", host, database.name)
        for database in settings.databases.values()
    ]


def advertised(agent: AgentSettings) -> str:
    """Where this agent is, as far as it can tell others."""
    if agent.advertise is not None:
        return agent.advertise
    if agent.listen is None:
        return ""
    host, port = agent.listen
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if agent.tls_cert else 'http'}://{shown}:{port}"


def own_names(agent: AgentSettings) -> frozenset[str]:
    """What the agent may be called in an address, besides numbers and localhost."""
    listens = agent.listen[0] if agent.listen else ""
    advertises = urlsplit(agent.advertise).hostname if agent.advertise else None
    found = {socket.gethostname(), agent.name, listens, advertises or "", *agent.hosts}
    return frozenset(name.lower() for name in found if name)


def faults_of(build: Callable[[], object]) -> list[Fault]:
    try:
        build()
    except InvalidSettings as error:
        return error.faults
    return []
