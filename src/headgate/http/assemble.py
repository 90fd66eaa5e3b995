"""The door of one agent, put together.   AgentRooms ──► Control, CheckRoutes ──► Listener"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from headgate.assemble import AgentRooms
from headgate.base.assemble import advertised, own_names
from headgate.base.redaction import shown
from headgate.check.routes import NAMED, CheckRoutes
from headgate.errors import Fault
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Credential, Gatekeeper, KnownHosts
from headgate.http.control import ROUTES, Control, ControlParts, PageGiven
from headgate.http.debugging import Inside
from headgate.http.exposition import Works
from headgate.http.exposition.series import Pulse
from headgate.http.listener import MAX_TURNED_AWAY, Handlers, Limits, Listener
from headgate.http.reloading import Acknowledge, Reload
from headgate.page.sessions import PageSessions
from headgate.settings.agent import Settings
from headgate.settings.sections import AgentSettings
from headgate.shard.peers import PeerAccess
from headgate.shard.routes import Forwarder
from headgate.tracing.requests import TracedDoor

# --- the limit of open files ---------------------------------------------------------------
# Whether this process can still open files, and one file in reserve for when it cannot.
#
# Each connection is a file. A process at its file limit accepts no connection, not even on the
# Unix socket, reads no /proc and starts no command, and the system reports nothing. So the agent
# tries to open a file once a second, and reports the result.

FILES_KEPT = 48
"""Files that are no connections: the store, the log, probes, commands, libraries."""
LEAST_CONNECTIONS = 8
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_SPARE = "/dev/null"


def most_connections(wanted: int, turned_away: int, probes: int) -> int:
    """How many connections fit into this process's file limit, next to `probes` and the
    connections that only get a "try again" answer."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(LEAST_CONNECTIONS, soft - FILES_KEPT - turned_away - probes))


class FileRoom:
    def __init__(self) -> None:
        self._reserve: int | None = None
        self.is_short = False

    @property
    def fault(self) -> str | None:
        if not self.is_short:
            return None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"the agent has reached its limit of {soft} open files and accepts no more "
            "connections. Find the clients with `ss -tnp`, or raise LimitNOFILE in its systemd unit"
        )

    def look(self) -> bool:
        """False: no file can be opened. The reserve file is closed then, so that the next
        operator can connect."""
        try:
            found = os.open(_SPARE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _OUT_OF_FILES:
                raise
            self._give_up()
        else:
            self._keep(found)
        return not self.is_short

    def _keep(self, found: int) -> None:
        if self._reserve is not None:
            os.close(found)
            if self.is_short:
                log.info("agent.has_files_again")
            self.is_short = False
        else:
            self._reserve = found  # Whether there is room for others, the next look tells.

    def _give_up(self) -> None:
        if not self.is_short:
            self.is_short = True
            log.error("agent.out_of_files", detail=self.fault)
        self.close()

    def close(self) -> None:
        if self._reserve is not None:
            with suppress(OSError):
                os.close(self._reserve)
            self._reserve = None


# --- the door ------------------------------------------------------------------------------

log = structlog.get_logger()

SHED_AT_ONCE = 16
"""Connections without any request yet, closed when no file can be opened any more."""


class Door:
    """The listener, and what it serves by the settings in force."""

    def __init__(self, rooms: AgentRooms, reload: Reload, acknowledge: Acknowledge) -> None:
        self._rooms = rooms
        self._reload = reload
        self._acknowledge = acknowledge
        self._page_sessions: PageSessions | None = None
        self._files = FileRoom()
        self.pulse = Pulse(rooms.context.clock)
        self.advice = ""
        """What the host does not allow."""
        self.listener = Listener(self._handlers(), self._limits(), self._hosts())

    def adopt(self) -> None:
        self.listener.handlers = self._handlers()
        self.listener.hosts = self._hosts()
        self.listener.repeats.forget()

    def tend(self, loop_s: float) -> str | None:
        """Returns why the process can open no more files."""
        self.listener.tend(loop_s)
        if not self._files.look():
            self.listener.shed(SHED_AT_ONCE)
        return self._files.fault

    def close(self) -> None:
        self._files.close()

    def _limits(self) -> Limits:
        settings = self._rooms.context.settings
        agent = settings.agent
        probes = sum(database.connections + 2 for database in settings.databases.values())
        most = most_connections(agent.max_connections, MAX_TURNED_AWAY, probes)
        if most < agent.max_connections:
            self.advice = (
                f"max_connections is {agent.max_connections}, and this process may open too few "
                f"files for that: {most} connections are served. Raise LimitNOFILE of its unit"
            )
            log.warning("agent.few_files", detail=self.advice)
        return Limits(most, agent.max_body_bytes, agent.request_timeout_s, agent.idle_timeout_s)

    def _gatekeeper(self) -> Gatekeeper:
        context = self._rooms.context
        return Gatekeeper(credentials_of(context.settings, context.access))

    def _hosts(self) -> KnownHosts:
        names = own_names(self._rooms.context.agent)
        return KnownHosts(names, has_token=self._gatekeeper().has_token)

    def _handlers(self) -> Handlers:
        rooms, tracer = self._rooms, self._rooms.context.tracer
        check, shards = rooms.check, rooms.shard.shards
        routes, bridge = CheckRoutes(check.checker), AsgiBridge(self._control().app())
        if rooms.context.agent.forward:
            forwarder = Forwarder(routes, bridge, check.board, shards)
            handlers = Handlers(forwarder.prepare, forwarder.serve)
        else:
            handlers = Handlers(routes.prepare, bridge.serve, NAMED)
        if tracer is None:
            return handlers
        paths = (route.path for route in ROUTES if route.handler)
        return TracedDoor(handlers, tracer, routes.check_in, paths).handlers()

    def _control(self) -> Control:
        rooms, context = self._rooms, self._rooms.context
        inside = Inside(
            lambda: shown(context.settings),
            lambda: _disks(context.settings),
            rooms.metrics.ask_server,
            works=Works(self.pulse, lambda: self.listener),
        )
        return Control(
            ControlParts(
                rooms.views,
                self._gatekeeper(),
                shards=rooms.shard.shards,
                demands=rooms.check.demands,
                rules=rooms.rules,
                own=rooms.changes.own,
                exchange=rooms.changes.exchange,
                fleet=rooms.fleet.routed() if rooms.fleet else None,
                page=self._page(context.settings),
                inside=inside,
                reload=self._reload,
                acknowledge=self._acknowledge,
            )
        )

    def _page(self, settings: Settings) -> PageGiven | None:
        page = settings.page
        if not page.enabled:
            return None
        # Kept through a reload: nobody is signed out by it.
        if self._page_sessions is None:
            self._page_sessions = PageSessions(self._rooms.context.clock, page.session_s)
        self._page_sessions.lasts_s = page.session_s
        return PageGiven(
            self._page_sessions,
            secure=settings.agent.tls_cert is not None,
            tour=page.tour,
            listens=advertised(settings.agent) or None,
            names=own_names(settings.agent),
        )


def assemble(rooms: AgentRooms, reload: Reload, acknowledge: Acknowledge) -> Door:
    return Door(rooms, reload, acknowledge)


def _disks(settings: Settings) -> Mapping[str, str]:
    """Where the agent writes."""
    state = settings.agent.state
    found = {} if state is None else {"state": str(state.parent)}
    for database in settings.databases.values():
        if database.traffic is not None and database.traffic.directory is not None:
            found[f"traffic {database.name}"] = str(database.traffic.directory)
    return found


def credentials_of(settings: Settings, access: PeerAccess) -> Iterator[Credential]:
    for token in settings.tokens:
        yield Credential(token.name, token.role.value, token.sha256)
    if access.token is not None:
        digest = hashlib.sha256(access.token.encode()).hexdigest()
        yield Credential("peers", "peer", digest)


def tls_of(agent: AgentSettings) -> ssl.SSLContext | None:
    if agent.tls_cert is None or agent.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(agent.tls_cert, agent.tls_key)
    except OSError as error:
        files = f"tls_cert {agent.tls_cert} and tls_key {agent.tls_key}"
        raise OSError(f"{files} cannot be used: {error}") from None
    if agent.tls_client_ca is not None:
        _believe_clients(context, agent.tls_client_ca)
    return context


def _believe_clients(context: ssl.SSLContext, path: Path) -> None:
    """Clients need not show a certificate; one that is shown must be good."""
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise OSError(f"tls_client_ca {path} cannot be used: {error}") from None
    context.verify_mode = ssl.CERT_OPTIONAL


def start_faults(agent: AgentSettings) -> Iterator[Fault]:
    """What only a start would run into, and not a reload."""
    try:
        tls_of(agent)
    except OSError as error:
        yield Fault("agent.tls_cert", str(error))
    if agent.socket is None:
        return
    folder = agent.socket.parent
    # What is missing in /run, a service manager makes at the start.
    if not folder.is_dir() and Path("/run") not in folder.parents:
        yield Fault("agent.socket", f"cannot be made: {folder} does not exist. mkdir -p {folder}")
    elif agent.socket.exists() and not agent.socket.is_socket():
        yield Fault("agent.socket", f"{agent.socket} exists already, and is not a socket")
