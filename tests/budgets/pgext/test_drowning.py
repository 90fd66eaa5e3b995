"""A server with every CPU and every connection in use is told a policy all the same (R131)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from headgate.budgets.pgext.operate import Extension
from tests.budgets.pgext.builders import blocking
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import NEWEST, ExtendedServer, majors, start_extended

CONNECTIONS = 24
TOO_MANY = "slots|too many"
# About 10 ms of CPU, so that a session waits much longer for its turn than it works.
DEAR = "SELECT count(*) FROM generate_series(1, 100000) n WHERE n % 7 = 3"


class Flood:
    """Sessions that ask for more than there is, and each one's last outcome."""

    def __init__(self, server: ExtendedServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self.seated = threading.Semaphore(0)
        self.admitted_at = [0.0] * CONNECTIONS
        """When the last statement that was admitted began."""
        self.rejected = [False] * CONNECTIONS
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CONNECTIONS)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            for _ in self._threads:
                assert self.seated.acquire(timeout=60)
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)

    def _run(self, number: int) -> None:
        with self._server.connect(user="etl") as session:
            self.seated.release()
            while not self._stop.is_set():
                began_at = time.monotonic()
                try:
                    session.execute(DEAR)
                except errors.InsufficientResources:
                    self.rejected[number] = True
                    self._stop.wait(0.02)
                else:
                    self.rejected[number] = False
                    self.admitted_at[number] = began_at


@pytest.fixture(params=majors(NEWEST))
def full_server(request: pytest.FixtureRequest, servers_dir: Path) -> Iterator[ExtendedServer]:
    settings = {"max_connections": str(CONNECTIONS), "superuser_reserved_connections": "0"}
    if request.param >= 16:
        settings["reserved_connections"] = "0"
    with start_extended(servers_dir, request.param, settings=settings) as server:
        with server.connect() as session:
            session.execute("CREATE ROLE etl LOGIN")
        yield server


def test_a_drowning_server_takes_a_policy_and_lets_go_of_it(
    full_server: ExtendedServer, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"budgets": [blocking("etl")]}))
    flood, extension = Flood(full_server), Extension()
    with flood.running():
        eventually(lambda: all(flood.admitted_at))
        with pytest.raises(psycopg.OperationalError, match=TOO_MANY):
            full_server.connect()
        done = extension.enable(full_server.traffic_dir, file, within_s=60, anyway=False)
        in_force_at = time.monotonic()
        assert done["state"] == "in force"
        eventually(lambda: all(flood.rejected))
        assert max(flood.admitted_at) < in_force_at, "whatever begins from then on goes by it"
        found = extension.status(full_server.traffic_dir, None)
        assert found["problems"] == [] and len(found["backends"]) == CONNECTIONS
        assert {one["version"] for one in found["backends"]} == {done["version"]}
        off = extension.disable(full_server.traffic_dir, purge=False, within_s=60)
        assert off["state"] == "in force"
        eventually(lambda: not any(flood.rejected))
