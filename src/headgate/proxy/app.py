"""The life of `headgate proxy`: start, take over, reload, drain, hand over.

ProxySettings ──► memory, NativeRelay, sockets (opened, inherited) ──► Process
                  Mind (proxy/assemble): agents, gates, targets, policy ──► Process
                  Listener ──► ProxyControl (proxy/control, Starlette)
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import structlog
from starlette.requests import Request

from headgate.base.clock import SystemClock
from headgate.base.logs import configure_logs
from headgate.base.notify import Notifier, inherited_sockets
from headgate.base.ports import Clock
from headgate.base.supervise import run_loop, supervised
from headgate.errors import Fault, HeadgateError, InvalidSettings, RelayFault
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Credential, Gatekeeper, Peer
from headgate.http.listener import Handlers, Limits, Listener
from headgate.proxy.assemble import (
    Mind,
    ProxyParts,
    assemble,
    check_files,
    mind_of,
    slowlog_terms,
)
from headgate.proxy.control import Operations, ProxyControl, Reloaded
from headgate.proxy.directory import (
    forget_where,
    make_private,
    tell_where,
)
from headgate.proxy.handover import (
    HandoverOffer,
    HandoverServer,
    Inheritance,
    ListeningSocket,
    Predecessor,
    bound_unix,
    inherit,
    open_listening,
    shown_address,
    unlink_own,
)
from headgate.proxy.listening import Listening
from headgate.proxy.memory import SharedMemory, adopt, build, create, relay_library
from headgate.proxy.relay import NativeRelay, settle_dead
from headgate.proxy.status import ProxyFacts, ProxyReadings, SettingsFacts, sessions_document
from headgate.settings.proxy import ProxySettings, load_proxy_settings
from headgate.version import VERSION

log = structlog.get_logger()

CONTROL_LIMITS = Limits(
    max_connections=128, max_body_bytes=65536, request_timeout_s=10.0, idle_timeout_s=75.0
)
CONTROL_BACKLOG = 128
STOP_GRACE_S = 2.0
TEND_INTERVAL_S = 1.0
FIRST_TARGETS_S = 5.0
"""How long the start waits for a server to send sessions to: a name to be looked up, an agent."""
SUCCESSOR_S = 60.0


def run_proxy(settings_path: Path) -> int:
    """Run until SIGTERM or SIGINT, or until another process has taken over. 0: normal stop;
    2: invalid settings; 1: fault."""
    try:
        settings = load_proxy_settings(settings_path)
        check_files(settings)
    except InvalidSettings as error:
        print(error, file=sys.stderr)  # noqa: T201 -- before there is a log
        return 2
    configure_logs(settings.log.value)
    try:
        relay_library()  # Before there is a loop: where it has to be built, that takes a while.
        # What a service manager says is in the environment.
        run_loop(_serve(settings, settings_path, os.environ))  # noqa: TID251
    except InvalidSettings as error:
        log.error("proxy.settings_rejected", detail=str(error))
        return 2
    except (OSError, HeadgateError) as error:
        log.error("proxy.cannot_serve", detail=str(error))
        return 1
    return 0


def build_relay() -> Path:
    return build()


def check_proxy(settings_path: Path) -> None:
    """What `lint` cannot tell: files that cannot be read, a policy with faults, a library that
    cannot be built."""
    check_files(load_proxy_settings(settings_path))
    relay_library()


async def _serve(settings: ProxySettings, path: Path, environment: Mapping[str, str]) -> None:
    await Proxy(settings, path, environment).run()


class Proxy:
    """One proxy, built from settings; `run` serves until it is stopped. Implements Operations."""

    def __init__(
        self,
        settings: ProxySettings,
        settings_path: Path | None,
        environment: Mapping[str, str],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._path = settings_path
        self._environment = environment
        self._clock = clock or SystemClock()
        self._notifier = Notifier(environment)
        self.signals = Signals()
        self.facts = ProxyFacts(
            name=settings.name,
            version=VERSION,
            protocol=settings.relay.protocol.value,
            pid=os.getpid(),
            started_s=self._clock.now().mono_s,
            threads=settings.relay.threads,
            dry_run=settings.relay.dry_run,
            max_sessions=settings.relay.max_sessions,
            settings=_facts_of(settings),
        )
        self._listening = Listening(self.facts)
        self._control = ControlDoor(settings, self)
        self.succession = ProxySuccession(settings.directory, self._offer, self._handed_over)
        self._tasks: list[asyncio.Task[None]] = []
        self._reloading = asyncio.Lock()
        self.parts: ProxyParts | None = None
        self.mind: Mind | None = None

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        self.signals.catch()
        try:
            await self.start()
            await self.signals.stop.wait()
            await self.wind_down()
        finally:
            await self.close()

    async def start(self) -> None:
        make_private(self._settings.directory)
        inheritance = await asyncio.to_thread(inherit, self._settings.directory)
        try:
            relay = await self._start(inheritance)
        except BaseException:
            if inheritance is not None:
                inheritance.close()
            raise
        if inheritance is not None:
            await self.succession.succeed(inheritance, relay, self.facts)
        self.succession.open()
        self.facts.state = "serving"
        self._notifier.ready()
        log.info(
            "proxy.serving",
            listen=[one["address"] for one in self.facts.listen],
            control=self.facts.control,
            threads=self.facts.threads,
            memory=self.facts.memory,
        )

    async def _start(self, inheritance: Inheritance | None) -> NativeRelay:
        settings = self._settings
        memory = _memory(settings, inheritance, self.facts)
        relay = NativeRelay(settings.relay, settings.identity, memory)
        parts = self.parts = assemble(settings, relay, self._clock, lambda: self.succession.is_ours)
        given = inherited_sockets(self._environment)
        self._listening.open(relay, settings.listen, given, inheritance)
        if inheritance is None:
            tell_where(settings.directory, memory)
        parts.watcher.look_now(force=self.facts.memory == "new")
        self.mind = mind_of(settings, parts.context)
        await parts.adopt(self.mind)
        await _first_targets(relay, self._clock, taking_over=inheritance is not None)
        relay.start()
        parts.process.begin()
        await self._control.serve(settings, inheritance, self.facts)
        for name, run in (("tend", self._tend), ("reload", self._reload_on_hangup)):
            self._tasks.append(asyncio.create_task(supervised(name, run), name=name))
        # What was built at start-up lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        return relay

    async def wind_down(self) -> None:
        assert self.parts is not None
        handed_over = self.succession.handed_over.is_set()
        self.facts.state = "handed over" if handed_over else "draining"
        within_s = self._settings.drain_timeout_s
        if not handed_over:
            self._notifier.stopping("draining")
            self.succession.close_server()
            self._listening.close(unlink=True)
        log.info("proxy.draining", handed_over=handed_over, within_s=within_s)
        draining = asyncio.ensure_future(
            self.parts.process.drain(
                handed_over=handed_over,
                memory_taken=self.succession.memory_taken,
                within_s=within_s,
            )
        )
        at_once = asyncio.ensure_future(self.signals.at_once.wait())
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        draining.cancel()
        empty = draining.done() and not draining.cancelled() and draining.result()
        log.info("proxy.drained", empty=empty)

    async def close(self) -> None:
        self.succession.close_server()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._control.listener.stop(STOP_GRACE_S)
        self.succession.close()
        if self.parts is not None:
            await self.parts.process.close()
        handed_over = self.succession.handed_over.is_set()
        if not handed_over:
            forget_where(self._settings.directory)
        self._control.close(self._settings)
        self._listening.close(unlink=not handed_over)
        self.facts.state = "stopped"
        log.info("proxy.stopped")

    # --- handing over ----------------------------------------------------------------------

    def _offer(self) -> HandoverOffer:
        assert self.parts is not None
        memory = self.parts.relay.memory
        offered = [*self._listening.offered(), *self._control.offered(self._settings)]
        places, sockets = [place for place, _ in offered], [fd for _, fd in offered]
        return HandoverOffer(memory.laid, memory.fd, tuple(places), tuple(sockets))

    def _handed_over(self, memory_taken: bool) -> None:
        if memory_taken and self.mind is not None:
            self.mind.hand_over()
        self.signals.stop.set()

    async def restart(self) -> int:
        """The successor is started as this process was, and takes over automatically."""
        if self._path is None or self.signals.stop.is_set():
            raise HeadgateError("this proxy cannot be restarted just now")
        check_files(load_proxy_settings(self._path, self._environment))
        return await self.succession.start_successor(self._clock)

    # --- settings --------------------------------------------------------------------------

    async def reload(self) -> Reloaded:
        async with self._reloading:
            try:
                return await self._reload()
            except InvalidSettings as error:
                self.facts.settings = replace(self.facts.settings, fault=str(error))
                log.error("settings.rejected", detail=str(error), stays="the last good settings")
                raise

    async def _reload(self) -> Reloaded:
        assert self.parts is not None
        if self._path is None:
            raise InvalidSettings([Fault("", "there is no settings file to read again")])
        new = await asyncio.to_thread(load_proxy_settings, self._path, self._environment)
        await asyncio.to_thread(check_files, new)
        before = self._settings
        waits = tuple(_fixed_changes(before, new))
        mind = mind_of(new, self.parts.context, self.mind)
        if self.facts.state == "draining":
            detail = "the proxy is draining and takes no new settings: start it again with them"
            raise InvalidSettings([Fault("", detail)], new.source)
        try:
            self._listening.follow(self.parts.relay, new.listen, new.identity, before.identity)
        except RelayFault as fault:
            raise InvalidSettings([Fault("", str(fault))], new.source) from None
        changed = tuple(_followed_changes(before, new))
        self._settings = replace(_followed(before, new), listen=self._listening.terms)
        self.mind = mind
        await self.parts.adopt(mind)
        self.parts.process.slowlog.adopt(slowlog_terms(new))
        self._control.adopt(new)
        self.facts.settings = _facts_of(new, waits)
        log.info("settings.reloaded", changed=changed, waits_for_restart=waits)
        return Reloaded(changed, waits, self.facts.settings.advice)

    async def _reload_on_hangup(self) -> None:
        while True:
            await self.signals.hangup.wait()
            self.signals.hangup.clear()
            with suppress(InvalidSettings):
                await self.reload()

    # --- the API ---------------------------------------------------------------------------

    async def seen(self) -> ProxyReadings:
        assert self.parts is not None
        return await self.parts.seen()

    def sessions(self, *, after: int, limit: int) -> dict[str, Any]:
        assert self.parts is not None
        relay = self.parts.relay
        return sessions_document(relay, relay.targets.targets, after=after, limit=limit)

    def kill(self, session: int) -> bool:
        assert self.parts is not None
        return self.parts.relay.kill(session)

    def drain(self) -> None:
        self.signals.stop.set()

    async def _tend(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._control.listener.tend(loop.time())
            await self._clock.sleep(TEND_INTERVAL_S)


def _facts_of(settings: ProxySettings, waits: tuple[str, ...] = ()) -> SettingsFacts:
    advice = tuple(str(advice) for advice in settings.advice)
    return SettingsFacts(settings.source, advice=advice, waits_for_restart=waits)


class Signals:
    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        self.hangup = asyncio.Event()

    def catch(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        loop.add_signal_handler(signal.SIGHUP, self.hangup.set)

    def end(self) -> None:
        """The first time in peace, the second time at once."""
        if self.stop.is_set():
            self.at_once.set()
        self.stop.set()


class ProxySuccession:
    """Takes over from the process before this one, and hands over to the next."""

    def __init__(
        self,
        directory: Path,
        offer: Callable[[], HandoverOffer],
        handed: Callable[[bool], None],
    ) -> None:
        """`handed`: called when another process serves, with whether it goes on with the memory."""
        self._directory = directory
        self._server = HandoverServer(directory, offer, self._taken_over)
        self._handed = handed
        self._predecessor: Predecessor | None = None
        self._successor: int | None = None
        self.is_ours = False
        """Whether the process before has handed everything over."""
        self.handed_over = asyncio.Event()
        self.memory_taken = False

    def open(self) -> None:
        self.is_ours = True
        self._server.open()

    def close_server(self) -> None:
        self._server.close()

    def close(self) -> None:
        if self._predecessor is not None:
            self._predecessor.close()

    async def succeed(
        self, inheritance: Inheritance, relay: NativeRelay, facts: ProxyFacts
    ) -> None:
        pid = inheritance.pid
        taken = facts.memory != "new"

        def settle(pid: int) -> None:
            """The process before is gone. What it was running, if it was killed, is settled."""
            facts.predecessor = None
            if taken:
                settled = settle_dead(relay.memory, pid)
                log.info("handover.predecessor_gone", predecessor=pid, settled_statements=settled)
                relay.stir()

        heard = await asyncio.to_thread(inheritance.ready, memory_taken=taken)
        # Only now: until here it was the other's, and is to be found by others as long as it lives.
        tell_where(self._directory, relay.memory)
        self._predecessor = Predecessor(pid, settle)
        facts.predecessor = pid
        log.info("handover.taken_over", predecessor=pid, drains=heard)
        self._predecessor.watch()

    async def _taken_over(self, pid: int, memory_taken: bool) -> None:
        log.info("handover.handed_over", successor=pid, memory_taken=memory_taken)
        self._successor, self.memory_taken = pid, memory_taken
        self.handed_over.set()
        self._handed(memory_taken)

    async def start_successor(self, clock: Clock) -> int:
        successor = subprocess.Popen(  # noqa: S603, ASYNC220 -- as we were started ourselves
            sys.orig_argv, stdin=subprocess.DEVNULL
        )
        deadline_s = clock.now().mono_s + SUCCESSOR_S
        while not self.handed_over.is_set():
            code = successor.poll()
            if code is not None:
                raise HeadgateError(
                    f"the successor ended with code {code} before it served; see its log. "
                    "This process keeps serving"
                )
            if clock.now().mono_s > deadline_s:
                successor.kill()
                await asyncio.to_thread(successor.wait)
                raise HeadgateError(f"the successor did not serve within {SUCCESSOR_S:g} s")
            await clock.sleep(0.05)
        return self._successor or successor.pid


class ControlDoor:
    """Where operators reach the proxy: its Unix socket, and [control] address."""

    def __init__(self, settings: ProxySettings, operations: Operations) -> None:
        self._operations = operations
        self._sock: socket.socket | None = None
        self._inode: int | None = None
        self.listener = Listener(self._handlers(settings), CONTROL_LIMITS)

    def adopt(self, settings: ProxySettings) -> None:
        self.listener.handlers = self._handlers(settings)

    def _handlers(self, settings: ProxySettings) -> Handlers:
        gatekeeper = Gatekeeper(
            Credential(token.name, cast(Any, token.role.value), token.sha256)
            for token in settings.tokens
        )

        def who_changes(request: Request) -> str:
            peer: Peer = request.scope["state"]["peer"]
            return gatekeeper.who_changes(peer, request.headers)

        bridge = AsgiBridge(cast(Any, ProxyControl(self._operations, who_changes).app()))
        return Handlers(lambda _: None, bridge.serve)

    async def serve(
        self, settings: ProxySettings, inheritance: Inheritance | None, facts: ProxyFacts
    ) -> None:
        loop, control, path = asyncio.get_running_loop(), settings.control, settings.control_socket
        unix = bound_unix(path, int(control.socket_mode, 8))
        self._inode = path.stat().st_ino
        server = await loop.create_unix_server(
            self.listener, sock=unix, backlog=CONTROL_BACKLOG, start_serving=False
        )
        self.listener.add(server)
        facts.control = [str(path)]
        if control.address is not None:
            sock = None
            if inheritance is not None:
                sock = inheritance.take_socket("control", *control.address)
            sock = sock or open_listening(*control.address, setting="[control] address")
            self._sock = sock.dup()
            tcp = await loop.create_server(
                self.listener,
                sock=sock,
                ssl=_control_tls(settings),
                backlog=CONTROL_BACKLOG,
                start_serving=False,
            )
            self.listener.add(tcp)
            facts.control.append(shown_address(self._sock))
        await self.listener.start()

    def offered(self, settings: ProxySettings) -> list[tuple[ListeningSocket, int]]:
        address = settings.control.address
        if self._sock is None or address is None:
            return []
        return [(ListeningSocket("control", *address), self._sock.fileno())]

    def close(self, settings: ProxySettings) -> None:
        unlink_own(settings.control_socket, self._inode)
        if self._sock is not None:
            self._sock.close()


def _memory(
    settings: ProxySettings, inheritance: Inheritance | None, facts: ProxyFacts
) -> SharedMemory:
    if inheritance is not None:
        try:
            memory = adopt(inheritance.take_memory(), inheritance.laid, settings.memory)
        except RelayFault as fault:
            log.warning(
                "handover.new_memory",
                detail=str(fault),
                meaning="budgets and counters start from zero; the old process keeps its own",
            )
        else:
            facts.memory = "taken over"
            return memory
    return create(settings.memory)


async def _first_targets(relay: NativeRelay, clock: Clock, *, taking_over: bool) -> None:
    """So that the first client finds a server. A start goes on without one after a while; a
    process that has servers is not replaced by one that knows none."""
    deadline_s = clock.now().mono_s + FIRST_TARGETS_S
    while not relay.targets.targets and clock.now().mono_s < deadline_s:
        await clock.sleep(0.01)
    if relay.targets.targets:
        return
    if taking_over:
        raise RelayFault(
            f"no server for sessions is known after {FIRST_TARGETS_S:g} s; "
            "the old process keeps serving. See its status, and whether this host can reach "
            "the agent and the server"
        )
    log.warning("proxy.no_server_yet", waited_s=FIRST_TARGETS_S)


def _control_tls(settings: ProxySettings) -> Any:
    import ssl

    control = settings.control
    if control.tls_cert is None or control.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(control.tls_cert, control.tls_key)
    except OSError as error:
        files = f"tls_cert {control.tls_cert} and tls_key {control.tls_key} of [control]"
        raise OSError(f"{files} cannot be used: {error}") from None
    return context


# --- what a reload may change ----------------------------------------------------------------

FIXED = ("name", "directory", "relay", "memory", "control", "log")
FOLLOWED = (
    *("listen", "servers", "follow", "agent", "identity", "gate", "release", "policy"),
    *("plans", "slowlog", "tokens", "drain_timeout_s"),
)
_NAMED = {
    "relay.max_buffer_bytes": "proxy.max_buffer_mb",
    "memory.cpus_milli": "proxy.cpus",
    "memory.workers": "proxy.max_connections",
    "memory.policy_bytes": "memory.policy_kb",
}
"""What settings call them, where that is another name."""


def _fixed_changes(before: ProxySettings, new: ProxySettings) -> list[str]:
    """By the names that the settings have."""
    waits = [name for part in FIXED for name in _differing(part, before, new)]
    there = {(terms.host, terms.port): terms for terms in before.listen}
    turned = [
        f"listen {terms.shown}"
        for terms in new.listen
        if (was := there.get((terms.host, terms.port))) and was.route is not terms.route
    ]
    return [*waits, *sorted(turned)]


def _differing(part: str, before: ProxySettings, new: ProxySettings) -> list[str]:
    old, other = getattr(before, part), getattr(new, part)
    if old == other:
        return []
    if not is_dataclass(old):
        return [f"proxy.{part}"]
    names = [
        f"{part}.{f.name}" for f in fields(old) if getattr(old, f.name) != getattr(other, f.name)
    ]
    return [_NAMED.get(name, name.replace("relay.", "proxy.")) for name in names]


def _followed_changes(before: ProxySettings, new: ProxySettings) -> list[str]:
    return [name for name in FOLLOWED if getattr(before, name) != getattr(new, name)]


def _followed(before: ProxySettings, new: ProxySettings) -> ProxySettings:
    return replace(new, **{name: getattr(before, name) for name in FIXED})
