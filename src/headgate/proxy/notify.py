"""What a service manager is told, and given by: NOTIFY_SOCKET and LISTEN_FDS of systemd.

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


class Notifier:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")

    def ready(self) -> None:
        """Also by a process that has taken over: the service is this one now."""
        self._tell(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=serving")

    def stopping(self, status: str) -> None:
        self._tell(f"STOPPING=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        self._tell(f"STATUS={status}")

    def _tell(self, words: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(SEND_S)
            sock.sendto(words.encode(), address)


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
