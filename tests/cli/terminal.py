"""A real pseudo-terminal with a process on it: what it shows, its keys, its size."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.fixtures.eventually import DEADLINE_S

_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")

# Makes the terminal the session's own, so that Ctrl-C there is a signal here.
_ON_THIS_TERMINAL = (
    "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "runpy.run_module('headgate', run_name='__main__', alter_sys=True)"
)


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], main_fd: int, side_fd: int) -> None:
        self.process = process
        self._main_fd = main_fd
        self._side_fd = side_fd
        self._output = bytearray()
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def raw(self) -> str:
        return bytes(self._output).decode("utf-8", "replace")

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.raw)

    def forget(self) -> None:
        """What was shown until now; what comes next is looked at alone."""
        self._output.clear()

    def press(self, keys: bytes) -> None:
        os.write(self._main_fd, keys)

    def resize(self, columns: int, lines: int) -> None:
        set_size(self._side_fd, columns, lines)

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._side_fd)

    def wait(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=DEADLINE_S)
        self._ended.set()
        self._reader.join()
        os.close(self._main_fd)
        os.close(self._side_fd)

    def _read(self) -> None:
        while not self._ended.is_set():
            ready, _, _ = select.select([self._main_fd], [], [], 0.05)
            if ready:
                self._output += os.read(self._main_fd, 65536)


def set_size(fd: int, columns: int, lines: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextmanager
def terminal(
    *argv: str, columns: int = 110, lines: int = 36, term: str = "xterm-256color", **env: str
) -> Iterator[Terminal]:
    """`headgate …` in a session of its own, with this as its controlling terminal."""
    main_fd, side_fd = pty.openpty()
    set_size(side_fd, columns, lines)
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_THIS_TERMINAL, *argv],
        stdin=side_fd,
        stdout=side_fd,
        stderr=side_fd,
        env={**os.environ, "TERM": term, **env},
        start_new_session=True,
    )
    shown = Terminal(process, main_fd, side_fd)
    try:
        yield shown
    finally:
        shown.close()
