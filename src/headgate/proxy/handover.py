"""A new process takes over from an old one, and no client's connection fails meanwhile.

    new ──hello──► old ──sockets, memory (SCM_RIGHTS)──► new … starts … ──ready──► old
                                                              old: stops accepting, drains, ends

Until "ready" the old one serves as before: a new one that fails changes nothing. If the old one
dies on the way, the new one keeps what it has got by then; with nothing, it starts from the
settings alone. Shared memory of another version is not taken over, and the log says so.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from headgate.errors import RelayFault
from headgate.proxy.memory import Laid
from headgate.version import VERSION

log = structlog.get_logger()

SOCKET = "handover.sock"
FORMAT = 1
MAX_MESSAGE_BYTES = 64 * 1024
MAX_FDS = 32
HELLO_S = 5.0
READY_S = 60.0
"""How long the new one may take to start."""
DRAINING_S = 5.0
BUSY_POLL_S = 0.05
_TAKEN = "another process is taking over"


class Busy(RelayFault):
    """It hands over to another process just now."""


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A listening socket, and which of the settings it was opened for."""

    kind: str
    """`listen`, or `control`."""
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class HandoverOffer:
    """What the old one gives away: the memory first, then a socket for each place."""

    laid: Laid
    memory_fd: int
    places: tuple[ListeningSocket, ...]
    sockets: tuple[int, ...]


# --- the new one ---------------------------------------------------------------------------


class Inheritance:
    """What was got from the old one, and the line to it."""

    def __init__(
        self,
        line: socket.socket,
        pid: int,
        laid: Laid,
        fds: Sequence[int],
        places: Sequence[ListeningSocket],
    ) -> None:
        self._line = line
        self.pid = pid
        self.laid = laid
        self._memory_fd: int | None = fds[0]
        self._sockets = [
            (place, socket.socket(fileno=fd)) for place, fd in zip(places, fds[1:], strict=True)
        ]

    def take_memory(self) -> int:
        fd, self._memory_fd = self._memory_fd, None
        assert fd is not None
        return fd

    def take_socket(self, kind: str, host: str, port: int) -> socket.socket | None:
        for index, (place, sock) in enumerate(self._sockets):
            if (place.kind, place.host, place.port) == (kind, host, port):
                del self._sockets[index]
                return sock
        return None

    def ready(self, *, memory_taken: bool = True) -> bool:
        """We serve. Whether the old one got the message: else it is dead, and all is ours."""
        try:
            _send(self._line, {"ready": True, "memory_taken": memory_taken})
            answer, _ = _receive(self._line, DRAINING_S)
            return bool(answer.get("draining"))
        except (OSError, RelayFault):
            return False
        finally:
            self.close()

    def close(self) -> None:
        """Without `ready`, the old one goes on as it was."""
        self._line.close()
        close_all(sock for _, sock in self._sockets)
        self._sockets = []
        if self._memory_fd is not None:
            os.close(self._memory_fd)
            self._memory_fd = None


def inherit(directory: Path, *, patience_s: float = HELLO_S) -> Inheritance | None:
    """From the process that serves on that directory; None: there is none, or it died on the way.
    If it is handing over to another already, wait: that other may fail."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return _inherit(directory)
        except Busy:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(BUSY_POLL_S)


def _inherit(directory: Path) -> Inheritance | None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(HELLO_S)
    try:
        line.connect(str(directory / SOCKET))
        pid, uid = _peer(line)
        if uid != os.geteuid():
            raise RelayFault(f"the process that serves on {directory} is user {uid}'s")
        _send(line, {"format": FORMAT, "pid": os.getpid(), "version": VERSION})
        answer, fds = _receive(line, HELLO_S)
    except (FileNotFoundError, ConnectionRefusedError):
        line.close()
        return None
    except OSError as error:
        line.close()
        log.warning("handover.old_one_died", detail=str(error) or type(error).__name__)
        return None
    except RelayFault:
        line.close()
        raise
    return _inherited(line, pid, answer, fds)


def _inherited(
    line: socket.socket, pid: int, answer: dict[str, Any], fds: list[int]
) -> Inheritance:
    try:
        if answer.get("format") != FORMAT or "error" in answer:
            told = answer.get("error", f"it speaks format {answer.get('format')!r}")
            kind = Busy if answer.get("busy") else RelayFault
            raise kind(f"process {pid} does not hand over: {told}")
        places = [ListeningSocket(**place) for place in answer["places"]]
        if len(fds) != len(places) + 1:
            raise RelayFault(f"process {pid} handed over {len(fds)} files for {len(places) + 1}")
        return Inheritance(line, pid, Laid(**answer["laid"]), fds, places)
    except (KeyError, TypeError) as error:
        fault = RelayFault(f"process {pid} sent a handover message that is not valid: {error}")
    except RelayFault as error:
        fault = error
    line.close()
    for fd in fds:
        os.close(fd)
    raise fault


class Predecessor:
    """The old one, from when it drains until it is gone; then what it left is settled."""

    def __init__(self, pid: int, gone: Callable[[int], None]) -> None:
        self.pid = pid
        self.is_gone = False
        self._gone = gone
        self._fd: int | None = None

    def watch(self) -> None:
        try:
            self._fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._end()
            return
        asyncio.get_running_loop().add_reader(self._fd, self._look)

    def _look(self) -> None:
        assert self._fd is not None
        if select.select([self._fd], [], [], 0)[0]:
            self.close()
            self._end()

    def _end(self) -> None:
        self.is_gone = True
        self._gone(self.pid)

    def close(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


# --- the old one ---------------------------------------------------------------------------


class HandoverServer:
    """Waits for a new process. One at a time; `taken` is called once, when it is ready, with its
    pid and whether it goes on with the memory. It is to return soon: the new one waits for it."""

    def __init__(
        self,
        directory: Path,
        offer: Callable[[], HandoverOffer],
        taken: Callable[[int, bool], Awaitable[None]],
    ) -> None:
        self._path = directory / SOCKET
        self._offer = offer
        self._taken = taken
        self._sock: socket.socket | None = None
        self._inode: int | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._busy = False

    def open(self) -> None:
        self._sock = bound_unix(self._path, 0o600)
        self._sock.setblocking(False)
        self._inode = self._path.stat().st_ino
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        if self._sock is None:
            return
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None
        unlink_own(self._path, self._inode)

    def _accept(self) -> None:
        assert self._sock is not None
        with suppress(BlockingIOError, ConnectionAbortedError):
            line, _ = self._sock.accept()
            line.setblocking(False)
            serving = asyncio.get_running_loop().create_task(self._serve(line))
            self._lines.add(serving)
            serving.add_done_callback(self._lines.discard)

    async def _serve(self, line: socket.socket) -> None:
        pid, uid = _peer(line)
        try:
            if uid != os.geteuid():
                raise RelayFault(f"process {pid} is user {uid}'s, and this is {os.geteuid()}'s")
            hello = await _heard(line, HELLO_S)
            if hello.get("format") != FORMAT:
                _send(line, {"format": FORMAT, "error": f"this one speaks format {FORMAT}"})
            elif self._busy:
                _send(line, {"format": FORMAT, "busy": True, "error": _TAKEN})
            else:
                await self._alone(line, pid, hello)
        except (OSError, RelayFault, TimeoutError) as error:
            detail = str(error) or type(error).__name__
            log.warning("handover.failed", pid=pid, detail=detail, stays="this process serves on")
        finally:
            line.close()

    async def _alone(self, line: socket.socket, pid: int, hello: dict[str, Any]) -> None:
        self._busy = True
        try:
            await self._hand_over(line, pid, hello)
        finally:
            self._busy = False

    async def _hand_over(self, line: socket.socket, pid: int, hello: dict[str, Any]) -> None:
        offer = self._offer()
        said = {
            "format": FORMAT,
            "laid": asdict(offer.laid),
            "places": [asdict(place) for place in offer.places],
        }
        _send(line, said, (offer.memory_fd, *offer.sockets))
        log.info("handover.offered", pid=pid, version=hello.get("version"))
        answer = await _heard(line, READY_S)
        if not answer.get("ready"):
            raise RelayFault("the new process did not say that it is ready")
        self.close()
        # First: after the answer, the new process maintains what we kept in the memory.
        await self._taken(pid, bool(answer.get("memory_taken", True)))
        with suppress(OSError):
            _send(line, {"draining": True})


# --- the line ------------------------------------------------------------------------------


def _peer(line: socket.socket) -> tuple[int, int]:
    raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def _send(line: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    body = json.dumps(message).encode() + b"\n"
    assert len(body) <= MAX_MESSAGE_BYTES
    sent = socket.send_fds(line, [body], list(fds)) if fds else line.send(body)
    if sent != len(body):
        raise OSError("the other process does not read")


def _receive(line: socket.socket, within_s: float) -> tuple[dict[str, Any], list[int]]:
    """One message, and the files that came with it."""
    deadline_s = time.monotonic() + within_s
    body, fds = b"", list[int]()
    while not body.endswith(b"\n"):
        line.settimeout(max(0.001, deadline_s - time.monotonic()))
        piece, new, _, _ = socket.recv_fds(line, MAX_MESSAGE_BYTES, MAX_FDS)
        fds += new
        if not piece:
            for fd in fds:
                os.close(fd)
            raise ConnectionResetError("the other process hung up")
        body += piece
    for fd in fds:
        os.set_inheritable(fd, False)
    return _object(body), fds


async def _heard(line: socket.socket, within_s: float) -> dict[str, Any]:
    loop, body = asyncio.get_running_loop(), b""
    async with asyncio.timeout(within_s):
        while not body.endswith(b"\n"):
            piece = await loop.sock_recv(line, MAX_MESSAGE_BYTES)
            body += piece
            if not piece or len(body) > MAX_MESSAGE_BYTES:
                raise RelayFault("it hung up before it was ready")
    return _object(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        raise RelayFault("it does not speak the handover protocol") from None
    if not isinstance(said, dict):
        raise RelayFault("it does not speak the handover protocol")
    return said


# --- sockets -------------------------------------------------------------------------------------

# Listening sockets: opened here, inherited from a service manager, or from the process before.

BACKLOG = 4096
UNIX_MODE = 0o777
"""As Postgres and MySQL have it: who may connect is a matter of logging in."""
_PROBE_S = 1.0


def is_unix(host: str) -> bool:
    return host.startswith("/")


def open_listening(host: str, port: int, setting: str = "[[listen]] address") -> socket.socket:
    """Bound and listening; RelayFault says what is in the way, and which setting it is about."""
    try:
        return _unix(Path(host), UNIX_MODE) if is_unix(host) else _tcp(host, port)
    except OSError as error:
        shown = host if is_unix(host) else f"{host}:{port}"
        fault = f"{setting}: cannot listen on {shown}: {error.strerror or error}"
        raise RelayFault(fault + _advice(error, setting)) from None


def _advice(error: OSError, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f". Another process has it: give this proxy a {setting} of its own"
    if error.errno == errno.EADDRNOTAVAIL:
        return ". This host has no such address"
    return ""


def _tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = _resolved(host, port)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _resolved(host: str, port: int) -> Sequence[tuple[int, int, int, str, tuple[object, ...]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # "localhost" is both; what most clients and configurations mean is IPv4.
    return sorted(found, key=lambda one: one[0] != socket.AF_INET)


def _unix(path: Path, mode: int) -> socket.socket:
    """Renamed into place: a client that connects meanwhile finds the old one, or the new."""
    if _is_served(path):
        raise OSError(f"{path} is served by another process")
    return bound_unix(path, mode)


def bound_unix(path: Path, mode: int) -> socket.socket:
    """In the place of whatever socket is there: of a process that hands over, or is gone."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        sock.bind(str(staged))
    except OSError as error:
        sock.close()
        raise OSError(f"{path}: {error.strerror or error}") from None
    finally:
        os.umask(umask)
    staged.chmod(mode)
    sock.listen(BACKLOG)
    staged.rename(path)
    return sock


def _is_served(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        with suppress(ConnectionRefusedError, FileNotFoundError):
            probe.connect(str(path))
            return True
    return False


def unlink_own(path: Path, inode: int | None) -> None:
    """Only the one that was bound here, if nobody has put another in its place."""
    with suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def listens_at(sock: socket.socket, host: str, port: int) -> bool:
    """Whether that is where the settings want one."""
    name = sock.getsockname()
    if is_unix(host):
        return bool(name == host)
    if not isinstance(name, tuple):
        return False
    with suppress(OSError):
        return any(address[:2] == name[:2] for *_, address in _resolved(host, port))
    return False


def shown_address(sock: socket.socket) -> str:
    name = sock.getsockname()
    if isinstance(name, str | bytes):
        return os.fsdecode(name)
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
