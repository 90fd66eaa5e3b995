"""Listening sockets: opened here, inherited from a service manager, or from the process before."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from headgate.errors import RelayFault

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
