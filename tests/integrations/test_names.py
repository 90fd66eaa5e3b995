"""Who asks and about what, as integrations read it from a gate."""

from __future__ import annotations

from headgate import Client

MANY = {"orders": "http://127.0.0.1:1", "users": ["http://127.0.0.1:2", "http://127.0.0.1:3"]}


def test_a_gate_sends_its_name_and_its_databases() -> None:
    with Client("run42:etl", database="main", url="http://127.0.0.1:1") as one:
        assert (one.app, one.databases) == ("run42:etl", ("main",))
    with Client("run42:etl", database=MANY) as many:
        assert many.databases == ("orders", "users")
