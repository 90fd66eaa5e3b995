"""A service manager's end of NOTIFY_SOCKET: what a service says, message by message."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fixtures.eventually import DEADLINE_S

Message = Mapping[str, str]


class Manager:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))

    def close(self) -> None:
        self._sock.close()

    def hear(self, within_s: float = DEADLINE_S) -> Message | None:
        """The next message; None: silence."""
        self._sock.settimeout(within_s)
        try:
            said = self._sock.recv(65536).decode()
        except TimeoutError:
            return None
        return dict(line.split("=", 1) for line in said.splitlines())

    def wait_for(self, wanted: Callable[[Message], bool], within_s: float = DEADLINE_S) -> Message:
        deadline_s = time.monotonic() + within_s
        heard: list[Message] = []
        while (left_s := deadline_s - time.monotonic()) > 0:
            message = self.hear(left_s)
            if message is not None and wanted(message):
                return message
            heard += [message] if message is not None else []
        raise AssertionError(f"not said within {within_s} s; last words: {heard[-5:]}")

    def drained(self) -> list[Message]:
        """All that is waiting by now."""
        found: list[Message] = []
        self._sock.setblocking(False)
        while True:
            try:
                said = self._sock.recv(65536).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in said.splitlines()))
