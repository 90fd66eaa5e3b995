"""The life of an agent: start, serve, reload, stop.   run_agent ──► Agent ──► AgentRooms, Door

What it is made of is put together in assemble.py, and what it serves in http/assemble.py.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import structlog

from headgate.assemble import AgentRooms, assemble
from headgate.base.assemble import assemble as assemble_base
from headgate.base.clock import Dice
from headgate.base.logs import configure_logs
from headgate.base.notify import Notifier
from headgate.base.ports import Clock
from headgate.base.supervise import run_loop, supervised
from headgate.commands import reject_faults, validated
from headgate.errors import Fault, InvalidSettings, StoreUnavailable
from headgate.history.records import AuditEntry
from headgate.http.assemble import Door, tls_of
from headgate.http.assemble import assemble as assemble_http
from headgate.http.listener import Listener
from headgate.http.reloading import NOTHING, Confirmed, reload_faults
from headgate.settings.agent import Settings, read_settings
from headgate.settings.document import settings_text
from headgate.settings.sections import (
    AgentSettings,
    StateLoss,
)

log = structlog.get_logger()

STOP_GRACE_S = 5.0
STORE_RETRY_S = 5.0
TEND_INTERVAL_S = 1.0
BACKLOG = 1024
SETTLE_S, SETTLE_LOOKS = 0.1, 50
WAIT_FOR_RESTART = ("agent", "peers", "fleet", "patroni", "tracing")
"""Sections whose changes a reload leaves alone."""


def run_agent(settings_path: Path) -> int:
    """Run until SIGTERM or SIGINT. 0: normal stop; 2: invalid settings; 1: fault."""
    try:
        settings = validated(settings_path)
    except InvalidSettings as error:
        print(error, file=sys.stderr)  # noqa: T201 -- before there is a log
        return 2
    configure_logs(settings.agent.log.value)
    # What a service manager says is in the environment.
    agent = Agent(settings, settings_path, notifier=Notifier(os.environ))  # noqa: TID251
    try:
        run_loop(agent.run())
    except OSError as error:
        log.error("agent.cannot_serve", detail=str(error))
        return 1
    return 0


def _ready(agent: AgentSettings) -> str:
    """What to type next, for the person who started it in a terminal."""
    scheme = "https" if agent.tls_cert else "http"
    places = [] if agent.socket is None else [f"unix://{agent.socket.absolute()}"]
    places += [] if agent.listen is None else [f"{scheme}://{':'.join(map(str, agent.listen))}"]
    return (
        f"ready: {' and '.join(places)}. In another terminal:\n"
        f"  export HEADGATE_URL={places[0]}\n"
        "  headgate top     # live\n"
        "  headgate page    # a link to the page, signed in"
    )


class Agent:
    """One agent, built from settings; `run` serves until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        settings_path: Path | None = None,
        *,
        clock: Clock | None = None,
        dice: Dice | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self.context = context = assemble_base(settings, clock, dice)
        self.rooms = assemble(context)
        self._state = KeptState(self.rooms)
        self.door = assemble_http(self.rooms, self.reload, self._state.acknowledge_loss)
        self._file = SettingsFile(settings_path, self.rooms, self.door)
        self._sockets = Sockets(context.agent)
        self._clock = context.clock
        self._notifier = notifier or Notifier({})
        self._has_begun = False
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self._catch_signals()
        try:
            await self.start()
            await self._stop.wait()
        finally:
            await self.stop()

    async def start(self) -> None:
        rooms, settings = self.rooms, self.context.settings
        await self._sockets.bind(self.door.listener)
        self._has_begun = True
        if not await self._state.load():
            self._background("store", self._state.load_later)
        if rooms.fleet is not None:
            await rooms.fleet.log.recall()
        if (standby := rooms.shard.duty.standby) is not None:
            await standby.look_once()
            self._background("standby", standby.run)
        # Last: no check gets "unknown database" while one is loading.
        await self.door.listener.start()
        history, changes = rooms.history, rooms.changes
        self._background("keeper", history.keeper.run)
        self._background("watch", history.watch.run)
        self._background("alerts", history.alerts.run)
        self._background("rogues", history.rogues.run)
        self._background("statements", rooms.budgets.statements.run)
        self._background("rules", rooms.rules.run)
        self._background("budgets", rooms.budgets.budgets.run)
        self._background("exchange", changes.exchange.run)
        self._background("forgetter", changes.forgetter.run)
        self._background("starts", changes.start_due)
        self._background("metrics", rooms.metrics.keeper.run)
        for name, run in rooms.fleet.loops() if rooms.fleet else ():
            self._background(name, run)
        self._background("tend", self._tend)
        self._background("pulse", self.door.pulse.run)
        self._background("reload", self._reload_on_hangup)
        # What was built at start-up lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        log.info(
            "agent.serving",
            listen=self.door.listener.ports,
            socket=str(settings.agent.socket or ""),
            databases=sorted(settings.databases),
        )
        if sys.stderr.isatty():
            print(_ready(settings.agent), file=sys.stderr)  # noqa: T201 -- for the person who started it
        if self._notifier.is_heard:
            self._notifier.ready(self._status())
            self._background("service", self._tell_manager)

    async def stop(self) -> None:
        if not self._has_begun:  # Its address was taken: nothing has to end.
            return
        log.info("agent.stopping")
        self._notifier.stopping("finishing what is under way")
        rooms, tracer = self.rooms, self.context.tracer
        rooms.shard.shards.let_go()
        rooms.changes.exchange.let_go()
        rooms.check.local.broadcasts.close()
        await self.door.listener.stop(STOP_GRACE_S)
        tasks = [*self._tasks, *rooms.shard.heartbeats.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with AsyncExitStack() as ends:
            # From the last to the first; one that fails keeps none of the others from its end.
            ends.callback(self._sockets.unlink)
            ends.push_async_callback(self._state.close)
            ends.callback(rooms.changes.own.close)
            ends.push_async_callback(rooms.budgets.budgets.flush)
            ends.push_async_callback(rooms.history.keeper.flush)
            ends.push_async_callback(rooms.metrics.keeper.close)
            ends.push_async_callback(rooms.shard.shards.close)
            ends.push_async_callback(rooms.changes.exchange.close)
            ends.push_async_callback(rooms.shard.patroni.close)
            if rooms.fleet is not None:
                ends.push_async_callback(rooms.fleet.close)
            if (standby := rooms.shard.duty.standby) is not None:
                ends.push_async_callback(standby.leave)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
        self.door.close()
        log.info("agent.stopped")

    async def reload(self, confirmed: Confirmed = NOTHING) -> Sequence[str]:
        return await self._file.reload(confirmed)

    # --- loops and signals -----------------------------------------------------------------

    def _background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(supervised(name, run), name=name))

    async def _tend(self) -> None:
        loop, rooms = asyncio.get_running_loop(), self.rooms
        while True:
            rooms.facts.files_fault = self.door.tend(loop.time())
            rooms.views.note_health()
            rooms.check.demands.tick(self._clock.now().mono_s)
            await self._clock.sleep(TEND_INTERVAL_S)

    async def _tell_manager(self) -> None:
        """That this loop runs (a stuck one is restarted), and, when it changes, how it is."""
        told = ""
        while True:
            self._notifier.alive()
            if (status := self._status()) != told:
                self._notifier.status(status)
                told = status
            await self._clock.sleep(self._notifier.sign_interval_s)

    def _status(self) -> str:
        doc, count = self.rooms.views.ready(), len(self.context.settings.databases)
        does = "standby for" if self.rooms.shard.duty.is_passive() else "serving"
        said = [f"{does} {count} database{'s' if count != 1 else ''}"]
        if self.rooms.facts.settings_fault is not None:
            said.append("the settings file is invalid; the earlier settings stay in force")
        return "; ".join([*said, *doc.waiting_for, *doc.notes])

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)

    async def _reload_on_hangup(self) -> None:
        """One reload at a time; hang-ups that come meanwhile make one more."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            self._notifier.reloading(self._clock.now().mono_s)
            try:
                with suppress(InvalidSettings):
                    await self.reload()
            finally:
                self._notifier.ready(self._status())


class SettingsFile:
    """What the agent was started by, and follows."""

    def __init__(self, path: Path | None, rooms: AgentRooms, door: Door) -> None:
        self._path = path
        self._text = _text_of(path)
        """Of the file as it was last followed; None where it could not be read again."""
        self._rooms = rooms
        self._door = door
        self._reloading = asyncio.Lock()
        self._describe()

    async def reload(self, confirmed: Confirmed) -> Sequence[str]:
        """Apply the settings file; returns the sections that wait for a restart. An invalid file
        changes nothing, raises InvalidSettings, and is shown in status."""
        async with self._reloading:
            try:
                return await self._reload(confirmed)
            except InvalidSettings as error:
                self._rooms.facts.settings_fault = str(error)
                log.error("settings.rejected", detail=str(error))
                raise

    async def _reload(self, confirmed: Confirmed) -> Sequence[str]:
        if self._path is None:
            raise InvalidSettings([Fault("", "this agent was started without a settings file")])
        content = await self._settled_text(self._path)
        settings = read_settings(content, source=str(self._path))
        reject_faults(settings, content)
        context = self._rooms.context
        before, faults = context.settings, []
        if self._text is not None:
            faults = reload_faults(
                _judged(before), self._text, _judged(settings), content, confirmed
            )
        if faults:
            raise InvalidSettings(faults, str(self._path))
        waiting = [s for s in WAIT_FOR_RESTART if getattr(settings, s) != getattr(before, s)]
        for section in waiting:
            detail = f"changes in [{section}] wait for one"
            log.warning(f"settings.{section}_needs_restart", detail=detail)
        kept = {section: getattr(before, section) for section in WAIT_FOR_RESTART}
        context.settings = settings = replace(settings, **kept)
        self._text = content
        self._describe()
        self._rooms.history.adopt(settings)
        await self._rooms.adopt()
        self._door.adopt()
        log.info("settings.reloaded", databases=sorted(settings.databases))
        return waiting

    async def _settled_text(self, path: Path) -> str:
        """What the file says once it stays the same for a moment: it may be half-written."""
        content = settings_text(path)
        for _ in range(SETTLE_LOOKS):
            await self._rooms.context.clock.sleep(SETTLE_S)
            before, content = content, settings_text(path)
            if content == before:
                return content
        fault = Fault("", f"is still being written after {SETTLE_LOOKS * SETTLE_S:g} s")
        raise InvalidSettings([fault], str(path))

    def _describe(self) -> None:
        facts, settings = self._rooms.facts, self._rooms.context.settings
        facts.settings = settings.source
        facts.settings_fault = None
        told = [str(advice) for advice in settings.advice]
        facts.advice = (*told, *filter(None, [self._door.advice]))


class KeptState:
    """What the store has of operators' changes: loaded at the start, lost, found again."""

    def __init__(self, rooms: AgentRooms) -> None:
        self._rooms = rooms
        self._context = rooms.context
        self._store = rooms.context.store
        self._own = rooms.changes.own

    async def load(self) -> bool:
        """False: the store is away, and what can be read of it is in force."""
        try:
            await self._store.open()
            await self._load()
            loaded = True
        except StoreUnavailable as error:
            log.error("store.unavailable", store=self._store.name, detail=str(error))
            self._rooms.history.keeper.mark_fault(str(error))
            await self._salvage()
            loaded = False
        await self._rooms.adopt()
        return loaded

    async def load_later(self) -> None:
        while True:
            await self._context.clock.sleep(STORE_RETRY_S)
            with suppress(StoreUnavailable):
                await self._store.open()
                await self._take_up()
                return

    async def acknowledge_loss(self, who: str) -> Sequence[str]:
        """Go on without what is lost: rename the old file and start a new one. Returns the names
        of the renamed files. Conflict where nothing is lost."""
        now_s, target = self._context.clock.now().wall_s, str(self._context.agent.state or "")
        lost = self._rooms.facts.state_lost
        entry = AuditEntry(now_s, who, "state.acknowledged", target, lost, None)
        moved = await self._store.begin_anew(entry)
        log.warning("state.acknowledged", who=who, moved=moved)
        await self._take_up()
        await self._rooms.history.keeper.flush()
        return moved

    async def close(self) -> None:
        with suppress(StoreUnavailable):
            await self._store.close()

    async def _load(self) -> int:
        """All of it is read before any of it counts. How many changes there are."""
        reports = await self._store.reports()
        own = await self._own.load(self._rooms.changes.in_force.load)
        self._rooms.history.unthrottled.load(reports)
        return len(own.items)

    async def _take_up(self) -> None:
        """What the store has, now that it can be read."""
        count, facts = await self._load(), self._rooms.facts
        if facts.state_lost is not None:
            log.warning("state.known", store=self._store.name)
        facts.state_lost, self._rooms.check.checker.closed = None, ""
        await self._rooms.adopt()
        log.info("store.changes_loaded", count=count)

    async def _salvage(self) -> None:
        """What can be read of it, or of its copy. Checks do not wait for the rest; the fault stays
        visible. Where nothing can be read, the gate stays shut unless the settings say otherwise:
        a `hold` may have been in force."""
        try:
            await self._own.load(self._rooms.changes.in_force.load, salvaged=True)
        except StoreUnavailable as error:
            self._lose(str(error))

    def _lose(self, why: str) -> None:
        policy, facts = self._context.agent.state_lost, self._rooms.facts
        rejects = policy is StateLoss.REJECT
        does = "every check is rejected" if rejects else "the settings file alone is in force"
        facts.state_lost = f"{does}, until an operator acknowledges it. {why}"
        if rejects:
            closed = f"the agent has lost its state: {facts.state_lost}"
            self._rooms.check.checker.closed = closed
        log.error("state.lost", store=self._store.name, policy=policy.value, detail=why)


def _judged(settings: Settings) -> Mapping[str, object]:
    """A threshold, a shard, or what is done about a member that is missing: all of it counts."""
    return {name: (database, settings.peers) for name, database in settings.databases.items()}


def _text_of(path: Path | None) -> str | None:
    with suppress(InvalidSettings):
        return None if path is None else settings_text(path)
    return None


class Sockets:
    """Where the agent listens."""

    def __init__(self, agent: AgentSettings) -> None:
        self._agent = agent
        self._inode: int | None = None

    async def bind(self, listener: Listener) -> None:
        loop, agent = asyncio.get_running_loop(), self._agent
        if agent.listen is not None:
            host, port = agent.listen
            try:
                server = await loop.create_server(
                    listener,
                    host,
                    port,
                    ssl=(tls := tls_of(agent)),
                    ssl_handshake_timeout=agent.request_timeout_s if tls else None,
                    backlog=BACKLOG,
                    start_serving=False,
                )
            except OSError as error:
                raise OSError(_not_bound(f"{host}:{port}", error)) from None
            listener.add(server)
        if agent.socket is not None:
            sock = _unix_socket(agent.socket, int(agent.socket_mode, 8))
            self._inode = agent.socket.stat().st_ino
            unix = await loop.create_unix_server(
                listener, sock=sock, backlog=BACKLOG, start_serving=False
            )
            listener.add(unix)

    def unlink(self) -> None:
        """Only the one that was bound here, if nobody has put another in its place."""
        path = self._agent.socket
        if path is None or self._inode is None:
            return
        with suppress(FileNotFoundError):
            if path.stat().st_ino == self._inode:
                path.unlink()


def _not_bound(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{address} is taken: stop the program that listens there (headgate doctor says "
            "whether it is an agent), or change listen of [agent]"
        )
    reason = os.strerror(error.errno) if error.errno else error
    return f"cannot listen on {address}: {reason}; change listen of [agent]"


def _unix_socket(path: Path, mode: int) -> socket.socket:
    """Bound with its permissions in place before anybody can connect."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        remedy = f": mkdir -p {path.parent}" if not path.parent.exists() else ""
        raise OSError(f"socket {path} cannot be made: {error.strerror or error}{remedy}") from None
    finally:
        os.umask(umask)
    path.chmod(mode)
    return sock


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        else:
            raise OSError(f"{path} is served by another process")
