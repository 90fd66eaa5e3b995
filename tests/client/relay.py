"""A relay between a client and an agent, that freezes, cuts and loses as a test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from random import Random

from tests.fixtures.eventually import DEADLINE_S

PIECE_BYTES = 65536


class Relay:
    """Listens on a port of its own. `frozen`: bytes come and are delayed, as by a stopped
    process. `fate(connection number)`: after how many pieces that connection is cut."""

    def __init__(self, port: int, fate: Callable[[int], int | None] = lambda _: None) -> None:
        self._address = ("127.0.0.1", port)
        self._fate = fate
        self._moving = threading.Event()
        self._moving.set()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._spawn(self._accept)

    def freeze(self) -> None:
        self._moving.clear()

    def thaw(self) -> None:
        self._moving.set()

    def cut(self) -> None:
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            left = [self._fate(self.connections)]
            far = socket.create_connection(self._address)
            self._open |= {near, far}
            self._spawn(self._pump, near, far, left)
            self._spawn(self._pump, far, near, left)

    def _pump(self, here: socket.socket, there: socket.socket, left: list[int | None]) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(PIECE_BYTES):
                self._moving.wait()
                if left[0] is not None:
                    left[0] -= 1
                    if left[0] < 0:
                        break
                there.sendall(data)
        for sock in (here, there):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._open.discard(here)
        here.close()

    def close(self) -> None:
        self._stopped = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.thaw()
        self.cut()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def flaky(seed: int) -> Callable[[int], int | None]:
    """Each connection is cut after a few pieces: between a report and its answer, too."""
    random = Random(seed)
    return lambda _: random.randrange(1, 12)
