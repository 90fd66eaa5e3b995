"""The composition root of `headgate proxy`: reads the settings, puts the parts together, runs them.

ProxySettings ──► memory, NativeRelay, sockets (opened, inherited) ──► Process
                  Mind (proxyparts): agents, gates, targets, policy ──► Process
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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import structlog
from starlette.requests import Request

from headgate.base.clock import SystemClock
from headgate.base.logs import configure_logs
from headgate.base.notify import Notifier, inherited_sockets
from headgate.base.ports import Clock
from headgate.base.supervise import run_loop, supervised
from headgate.budgets.ask import Dialect
from headgate.budgets.pgext.directory import health_of
from headgate.budgets.pgext.meter import RegionMeter
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.readings import BudgetReadings
from headgate.errors import Fault, HeadgateError, InvalidSettings, MeterFailed, RelayFault
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Credential, Gatekeeper
from headgate.http.listener import Handlers, Limits, Listener
from headgate.http.peers import Peer
from headgate.proxy.assemble import DirectoryTaker, Mind, ProxyContext, check_files, mind_of
from headgate.proxy.control import ProxyControl, Reloaded
from headgate.proxy.directory import (
    DirectoryWatcher,
    HealthTold,
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
    close_all,
    inherit,
    is_unix,
    listens_at,
    open_listening,
    shown_address,
    unlink_own,
)
from headgate.proxy.memory import SharedMemory, adopt, build, create, relay_library
from headgate.proxy.model import ListenTerms, Protocol
from headgate.proxy.process import Process, Slowlog, SlowlogTerms
from headgate.proxy.relay import NativeRelay
from headgate.proxy.status import ProxyFacts, ProxyReadings, listen_document, sessions_document
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
_DIALECTS = {Protocol.POSTGRES: Dialect.POSTGRES, Protocol.MYSQL: Dialect.MYSQL}


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
        # Before there is a loop: where it has to be built, that takes a while.
        log.info("proxy.loading", detail="the relay is built first, where this host has none yet")
        relay_library()
        # What a service manager says is in the environment.
        run_loop(_serve(settings, settings_path, os.environ))  # noqa: TID251
    except InvalidSettings as error:
        log.error("proxy.settings_refused", detail=str(error))
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


@dataclass(slots=True)
class _Listening:
    """An address that is served: its number in the relay, and our own hold on its socket."""

    terms: ListenTerms
    number: int
    sock: socket.socket
    inode: int | None = None


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
        self._meter = RegionMeter(settings.directory)
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._hangup = asyncio.Event()
        self._handed_over = asyncio.Event()
        self._successor: int | None = None
        self._memory_taken = False
        self._is_ours = False
        self._predecessor: Predecessor | None = None
        self._listening: list[_Listening] = []
        self._control_sock: socket.socket | None = None
        self._control_inode: int | None = None
        self._control = Listener(self._handlers(settings), CONTROL_LIMITS)
        self._tasks: list[asyncio.Task[None]] = []
        self._reloading = asyncio.Lock()
        self.facts = ProxyFacts(
            name=settings.name,
            version=VERSION,
            protocol=settings.relay.protocol.value,
            pid=os.getpid(),
            started_s=self._clock.now().mono_s,
            threads=settings.relay.threads,
            dry_run=settings.relay.dry_run,
            max_sessions=settings.relay.max_sessions,
        )
        self._describe(settings)
        self._handover = HandoverServer(settings.directory, self._offer, self._taken_over)
        self._relay: NativeRelay | None = None
        self._process: Process | None = None
        self._mind: Mind | None = None
        self._watcher: DirectoryWatcher | None = None
        self._around: ProxyContext | None = None

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        self._catch_signals()
        try:
            await self.start()
            await self._stop.wait()
            await self._wind_down()
        finally:
            await self.close()

    async def start(self) -> None:
        make_private(self._settings.directory)
        inheritance = await asyncio.to_thread(inherit, self._settings.directory)
        try:
            await self._start(inheritance)
        except BaseException:
            if inheritance is not None:
                inheritance.close()
            raise
        if inheritance is not None:
            await self._succeed(inheritance)
        self._is_ours = True
        self._handover.open()
        self.facts.state = "serving"
        self._notifier.ready()
        log.info(
            "proxy.serving",
            listen=[one["address"] for one in self.facts.listen],
            control=self.facts.control,
            loop=self.facts.loop,
            threads=self.facts.threads,
            memory=self.facts.memory,
        )

    async def _start(self, inheritance: Inheritance | None) -> None:
        settings = self._settings
        memory = self._memory(inheritance)
        relay = self._relay = NativeRelay(settings.relay, settings.identity, memory)
        self._listen(relay, settings.listen, inheritance)
        if inheritance is None:
            tell_where(settings.directory, memory)
        watcher = self._watcher = DirectoryWatcher(settings.directory, relay, _health_told)
        watcher.look_now(force=self.facts.memory == "new")
        sink = FilePolicySink(settings.directory, self._clock)
        self._around = ProxyContext(
            relay,
            self._clock,
            DirectoryTaker(sink, watcher),
            settings.directory,
            memory.region.patterns,
            lambda: self._is_ours,
        )
        slowlog = Slowlog(
            _slowlog_terms(settings),
            _DIALECTS[settings.relay.protocol],
            self._clock,
            self._client_name,
        )
        self._process = Process(relay, slowlog, self._clock)
        await self._adopt(mind_of(settings, self._around))
        await self._first_targets(relay, taking_over=inheritance is not None)
        relay.start()
        self._process.begin()
        self.facts.loop = relay.loop_name
        await self._serve_control(inheritance)
        self._background("tend", self._tend)
        self._background("reload", self._reload_on_hangup)
        # What was built at start-up lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()

    def _memory(self, inheritance: Inheritance | None) -> SharedMemory:
        if inheritance is not None:
            try:
                memory = adopt(inheritance.take_memory(), inheritance.laid, self._settings.memory)
            except RelayFault as fault:
                log.warning(
                    "handover.new_memory",
                    detail=str(fault),
                    meaning="budgets and counters start from zero; the old process keeps its own",
                )
            else:
                self.facts.memory = "taken over"
                return memory
        return create(self._settings.memory)

    async def _first_targets(self, relay: NativeRelay, *, taking_over: bool) -> None:
        """So that the first client finds a server. A start goes on without one after a while; a
        process that has servers is not replaced by one that knows none."""
        deadline_s = self._clock.now().mono_s + FIRST_TARGETS_S
        while not relay.targets.targets and self._clock.now().mono_s < deadline_s:
            await self._clock.sleep(0.01)
        if relay.targets.targets:
            return
        if taking_over:
            raise RelayFault(
                f"no server for sessions is known after {FIRST_TARGETS_S:g} s; "
                "the old process keeps serving. See its status, and whether this host can reach "
                "the agent and the server"
            )
        log.warning("proxy.no_server_yet", waited_s=FIRST_TARGETS_S)

    async def _succeed(self, inheritance: Inheritance) -> None:
        pid = inheritance.pid
        taken = self.facts.memory != "new"
        heard = await asyncio.to_thread(inheritance.ready, memory_taken=taken)
        # Only now: until here it was the other's, and is to be found by others as long as it lives.
        assert self._relay is not None
        tell_where(self._settings.directory, self._relay.memory)
        self._predecessor = Predecessor(pid, self._settle)
        self.facts.predecessor = pid
        log.info("handover.taken_over", predecessor=pid, drains=heard)
        self._predecessor.watch()

    def _settle(self, pid: int) -> None:
        """The process before is gone. What it was running, if it was killed, is settled."""
        self.facts.predecessor = None
        if self._relay is None or self.facts.memory == "new":
            return
        settled = self._relay.settle_dead(pid)
        log.info("handover.predecessor_gone", predecessor=pid, settled_statements=settled)
        self._relay.stir()

    async def _wind_down(self) -> None:
        assert self._process is not None
        handed_over = self._handed_over.is_set()
        self.facts.state = "handed over" if handed_over else "draining"
        within_s = self._settings.drain_timeout_s
        if not handed_over:
            self._notifier.stopping("draining")
            self._handover.close()
            self._shut_doors()
        log.info("proxy.draining", handed_over=handed_over, within_s=within_s)
        draining = asyncio.ensure_future(
            self._process.drain(
                handed_over=handed_over, memory_taken=self._memory_taken, within_s=within_s
            )
        )
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        draining.cancel()
        empty = draining.done() and not draining.cancelled() and draining.result()
        log.info("proxy.drained", empty=empty)

    async def close(self) -> None:
        self._handover.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._control.stop(STOP_GRACE_S)
        if self._predecessor is not None:
            self._predecessor.close()
        if self._process is not None:
            await self._process.close()
        elif self._relay is not None:
            self._relay.close()
        self._let_go()
        self.facts.state = "stopped"
        log.info("proxy.stopped")

    def _let_go(self) -> None:
        if not self._handed_over.is_set():
            forget_where(self._settings.directory)
        unlink_own(self._settings.control_socket, self._control_inode)
        close_all(one.sock for one in self._listening)
        if self._control_sock is not None:
            self._control_sock.close()
        if not self._handed_over.is_set():
            for one in self._listening:
                self._let_go_of(one)

    def _shut_doors(self) -> None:
        """The relay closes its descriptors when it drains. If ours stayed open, clients would wait
        in the backlog, instead of getting "connection refused" and trying elsewhere."""
        close_all(one.sock for one in self._listening)
        for one in self._listening:
            self._let_go_of(one)

    def _let_go_of(self, one: _Listening) -> None:
        if is_unix(one.terms.host):
            unlink_own(Path(one.terms.host), one.inode)

    # --- sockets ---------------------------------------------------------------------------

    def _listen(
        self,
        relay: NativeRelay,
        wanted: tuple[ListenTerms, ...],
        inheritance: Inheritance | None,
    ) -> None:
        given = inherited_sockets(self._environment)
        for terms in wanted:
            sock = _of_manager(given, terms)
            if sock is None and inheritance is not None:
                sock = inheritance.take_socket("listen", terms.host, terms.port)
            self._listen_on(relay, terms, sock or open_listening(terms.host, terms.port))
        close_all(given)

    def _listen_on(self, relay: NativeRelay, terms: ListenTerms, sock: socket.socket) -> None:
        """The relay takes the socket; a second hold on it is ours, to hand over."""
        ours = sock.dup()
        try:
            number = relay.listen(sock, terms)
        except RelayFault:
            ours.close()
            raise
        inode = Path(terms.host).stat().st_ino if is_unix(terms.host) else None
        self._listening.append(_Listening(terms, number, ours, inode))
        self._describe_listening()

    def _describe_listening(self) -> None:
        self.facts.listen = [
            listen_document(one.terms, shown_address(one.sock)) for one in self._listening
        ]

    async def _serve_control(self, inheritance: Inheritance | None) -> None:
        loop, control = asyncio.get_running_loop(), self._settings.control
        path = self._settings.control_socket
        unix = bound_unix(path, int(control.socket_mode, 8))
        self._control_inode = path.stat().st_ino
        server = await loop.create_unix_server(
            self._control, sock=unix, backlog=CONTROL_BACKLOG, start_serving=False
        )
        self._control.add(server)
        self.facts.control = [str(path)]
        if control.address is not None:
            sock = None
            if inheritance is not None:
                sock = inheritance.take_socket("control", *control.address)
            sock = sock or open_listening(*control.address, setting="[control] address")
            self._control_sock = sock.dup()
            tcp = await loop.create_server(
                self._control,
                sock=sock,
                ssl=_control_tls(self._settings),
                backlog=CONTROL_BACKLOG,
                start_serving=False,
            )
            self._control.add(tcp)
            self.facts.control.append(shown_address(self._control_sock))
        await self._control.start()

    # --- handing over ----------------------------------------------------------------------

    def _offer(self) -> HandoverOffer:
        assert self._relay is not None
        memory = self._relay.memory
        places = [
            ListeningSocket("listen", one.terms.host, one.terms.port) for one in self._listening
        ]
        sockets = [one.sock.fileno() for one in self._listening]
        address = self._settings.control.address
        if self._control_sock is not None and address is not None:
            places.append(ListeningSocket("control", *address))
            sockets.append(self._control_sock.fileno())
        return HandoverOffer(memory.laid, memory.fd, tuple(places), tuple(sockets))

    async def _taken_over(self, pid: int, memory_taken: bool) -> None:
        log.info("handover.handed_over", successor=pid, memory_taken=memory_taken)
        self._successor, self._memory_taken = pid, memory_taken
        if memory_taken and self._mind is not None:
            self._mind.hand_over()
        self._handed_over.set()
        self._stop.set()

    async def restart(self) -> int:
        """The successor is started as this process was, and takes over automatically."""
        if self._path is None or self._stop.is_set():
            raise HeadgateError("this proxy cannot be restarted just now")
        check_files(load_proxy_settings(self._path, self._environment))
        successor = subprocess.Popen(  # noqa: S603, ASYNC220 -- as we were started ourselves
            sys.orig_argv, stdin=subprocess.DEVNULL
        )
        deadline_s = self._clock.now().mono_s + SUCCESSOR_S
        while not self._handed_over.is_set():
            code = successor.poll()
            if code is not None:
                raise HeadgateError(
                    f"the successor ended with code {code} before it served; see its log. "
                    "This process keeps serving"
                )
            if self._clock.now().mono_s > deadline_s:
                successor.kill()
                await asyncio.to_thread(successor.wait)
                raise HeadgateError(f"the successor did not serve within {SUCCESSOR_S:g} s")
            await self._clock.sleep(0.05)
        return self._successor or successor.pid

    # --- settings --------------------------------------------------------------------------

    async def reload(self) -> Reloaded:
        async with self._reloading:
            try:
                return await self._reload()
            except InvalidSettings as error:
                self.facts.settings_fault = str(error)
                log.error("settings.refused", detail=str(error), stays="the last good settings")
                raise

    async def _reload(self) -> Reloaded:
        assert self._relay is not None and self._around is not None
        if self._path is None:
            raise InvalidSettings([Fault("", "there is no settings file to read again")])
        new = await asyncio.to_thread(load_proxy_settings, self._path, self._environment)
        await asyncio.to_thread(check_files, new)
        waits = tuple(_fixed_changes(self._settings, new))
        mind = mind_of(new, self._around, self._mind)
        if self.facts.state == "draining":
            detail = "the proxy is draining and takes no new settings: start it again with them"
            raise InvalidSettings([Fault("", detail)], new.source)
        self._apply(self._relay, new)
        changed = tuple(_followed_changes(self._settings, new))
        # With the routes that they have.
        served = tuple(one.terms for one in self._listening)
        self._settings = replace(_followed(self._settings, new), listen=served)
        await self._adopt(mind)
        assert self._process is not None
        self._process.slowlog.adopt(_slowlog_terms(new))
        self._control.handlers = self._handlers(new)
        self._describe(new)
        self.facts.waits_for_restart = waits
        log.info("settings.reloaded", changed=changed, waits_for_restart=waits)
        return Reloaded(changed, waits, self.facts.advice)

    def _apply(self, relay: NativeRelay, new: ProxySettings) -> None:
        """What the relay may reject: all of it, or nothing."""
        before = self._settings
        places = {(one.terms.host, one.terms.port): one for one in self._listening}
        kept = [(places[p], t) for t in new.listen if (p := (t.host, t.port)) in places]
        added = [t for t in new.listen if (t.host, t.port) not in places]
        opened: list[tuple[ListenTerms, socket.socket]] = []
        try:
            opened += [(terms, open_listening(terms.host, terms.port)) for terms in added]
            relay.put_identity(new.identity)
            for one, terms in kept:
                relay.put_listener_tls(one.number, terms)
            for terms, sock in opened:
                self._listen_on(relay, terms, sock)
        except RelayFault as fault:
            close_all(sock for _, sock in opened)
            relay.put_identity(before.identity)
            for one, _ in kept:
                with suppress(RelayFault):
                    relay.put_listener_tls(one.number, one.terms)
            raise InvalidSettings([Fault("", str(fault))], new.source) from None
        for one, terms in kept:
            one.terms = replace(terms, route=one.terms.route)
        wanted = {(terms.host, terms.port) for terms in new.listen}
        for place, one in places.items():
            if place not in wanted:
                self._unlisten(relay, one)
        self._describe_listening()

    def _unlisten(self, relay: NativeRelay, one: _Listening) -> None:
        """Sessions that came by it stay."""
        relay.unlisten(one.number)
        self._listening.remove(one)
        self._let_go_of(one)
        one.sock.close()
        log.info("proxy.unlistened", listen=one.terms.shown)

    async def _adopt(self, mind: Mind) -> None:
        assert self._process is not None and self._watcher is not None
        mind.take_effect()
        self._mind = mind
        self._process.listen(mind.watchers, mind.told)
        await self._process.adopt([self._watcher, *mind.shared], mind.own)

    def _describe(self, settings: ProxySettings) -> None:
        self.facts.settings = settings.source
        self.facts.settings_fault = ""
        self.facts.advice = tuple(str(advice) for advice in settings.advice)

    # --- the API ---------------------------------------------------------------------------

    def _handlers(self, settings: ProxySettings) -> Handlers:
        gatekeeper = Gatekeeper(
            Credential(token.name, cast(Any, token.role.value), token.sha256)
            for token in settings.tokens
        )

        def who_changes(request: Request) -> str:
            peer: Peer = request.scope["state"]["peer"]
            return gatekeeper.who_changes(peer, request.headers.get("authorization"))

        bridge = AsgiBridge(cast(Any, ProxyControl(self, who_changes).app()))
        return Handlers(lambda _: None, bridge.serve)

    async def seen(self) -> ProxyReadings:
        assert self._process is not None and self._relay is not None
        relay, slowlog = self._relay, self._process.slowlog
        readings, fault = await self._readings()
        self.facts.slowlog_fault = slowlog.fault
        state = relay.memory.state
        now = self._clock.now()
        return ProxyReadings(
            now_s=now.mono_s,
            wall_ms=int(now.wall_s * 1000),
            clients=relay.clients(),
            threads=relay.thread_counts(),
            parts=self._process.states(),
            targets=relay.targets.targets,
            readings=readings,
            readings_fault=fault,
            clients_full=int(state.clients_full),
            statements_full=int(state.runnings_full),
            released=relay.released(),
            slowlog={"written": slowlog.lines, "left_out": slowlog.suppressed},
            policy_refusal=self._watcher.refusal if self._watcher else "",
        )

    async def _readings(self) -> tuple[BudgetReadings | None, str]:
        try:
            return await self._meter.read(), ""
        except MeterFailed as error:
            return None, str(error)

    def sessions(self, *, after: int, limit: int) -> dict[str, Any]:
        assert self._relay is not None
        return sessions_document(self._relay, self._relay.targets.targets, after=after, limit=limit)

    def kill(self, session: int) -> bool:
        assert self._relay is not None
        return self._relay.kill(session)

    def drain(self) -> None:
        self._stop.set()

    def _client_name(self, index: int) -> str:
        assert self._relay is not None
        found = self._relay.client(index)
        return found.client.identity if found else "unidentified"

    # --- loops and signals -----------------------------------------------------------------

    def _background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(supervised(name, run), name=name))

    async def _tend(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._control.tend(loop.time())
            await self._clock.sleep(TEND_INTERVAL_S)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)

    def _end(self) -> None:
        """The first time in peace, the second time at once."""
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    async def _reload_on_hangup(self) -> None:
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            with suppress(InvalidSettings):
                await self.reload()


def _of_manager(given: list[socket.socket], terms: ListenTerms) -> socket.socket | None:
    for index, sock in enumerate(given):
        if listens_at(sock, terms.host, terms.port):
            return given.pop(index)
    return None


def _health_told(body: bytes) -> HealthTold | None:
    found = health_of(body)
    return None if found is None else HealthTold(*found)


def _slowlog_terms(settings: ProxySettings) -> SlowlogTerms:
    told = settings.slowlog
    return SlowlogTerms(told.path, told.min_delay_s, told.warnings, told.per_s)


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
