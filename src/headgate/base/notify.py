"""systemd's protocol for services: NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS.

The names come in as a mapping: the environment is read where the settings are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

FIRST_FD = 3
MAX_FDS = 64
SEND_S = 1.0
MAX_STATUS_CHARS = 240
SIGNS_PER_DEADLINE = 3
"""One that comes late, or gets lost, is not the end."""
LONGEST_SIGN_INTERVAL_S = 5.0


class Notifier:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environment) if self._path else None
        """Seconds without a sign of life after which the service is restarted; None: never."""

    @property
    def is_heard(self) -> bool:
        return bool(self._path)

    @property
    def sign_interval_s(self) -> float:
        if self.watchdog_s is None:
            return LONGEST_SIGN_INTERVAL_S
        return min(LONGEST_SIGN_INTERVAL_S, self.watchdog_s / SIGNS_PER_DEADLINE)

    def ready(self, status: str = "serving") -> None:
        """Also by a process that has taken over: the service is this one now."""
        self._tell(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={_line(status)}")

    def reloading(self, mono_s: float) -> None:
        """Until `ready` is sent again. `mono_s`: now, by the machine's monotonic clock."""
        stamp = f"MONOTONIC_USEC={int(mono_s * 1e6)}"
        self._tell(f"RELOADING=1\n{stamp}\nSTATUS=reading the settings again")

    def stopping(self, status: str) -> None:
        self._tell(f"STOPPING=1\nSTATUS={_line(status)}")

    def status(self, status: str) -> None:
        self._tell(f"STATUS={_line(status)}", within_s=0)

    def alive(self) -> None:
        """From the event loop, and nowhere else: a loop that is stuck must fall silent. It does not
        wait, either: a manager that is behind must not hold up checks."""
        if self.watchdog_s is not None:
            self._tell("WATCHDOG=1", within_s=0)

    def _tell(self, words: str, within_s: float = SEND_S) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(within_s)
            sock.sendto(words.encode(), address)


def _line(status: str) -> str:
    """A line of its own would be a message of its own."""
    said = " ".join(status.split())
    return said if len(said) <= MAX_STATUS_CHARS else said[: MAX_STATUS_CHARS - 1] + "…"


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """What systemd gave to this very process: a child inherits the names, not the duty."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or not int(usec) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 1e6


def inherited_sockets(environment: Mapping[str, str]) -> list[socket.socket]:
    """Those that systemd has opened for this very process (socket activation)."""
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for fd in range(FIRST_FD, FIRST_FD + min(int(count), MAX_FDS)):
        with suppress(OSError):
            found.append(socket.socket(fileno=fd))
            os.set_inheritable(fd, False)
    return found
