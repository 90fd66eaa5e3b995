"""Alembic.   env.py: throttle(engine, gate) · a migration: in_batches(op, gate, "UPDATE …")

Each migration waits before its transaction begins. That needs `transaction_per_migration=True` in
`context.configure`: without it all migrations are one transaction with a single check at its begin.
Nothing waits within a migration's transaction: a table that it has locked stays locked meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alembic.operations import Operations
from sqlalchemy import Engine, Executable, text

from headgate import Client
from headgate.errors import Fault, InvalidSettings
from headgate.integrations import sqlalchemy as integration

MAX_BATCHES = 1_000_000


def throttle(
    engine: Engine, gate: Client, *, tags: Mapping[str, str] | None = None
) -> integration.EngineThrottle:
    """For env.py, before `engine.connect()`. Offline (`--sql`) nothing runs and nothing checks."""
    return integration.throttle(engine, gate, tags=tags)


def in_batches(
    op: Operations | Any,
    gate: Client,
    statement: str | Executable,
    parameters: Mapping[str, Any] | None = None,
    *,
    max_batches: int = MAX_BATCHES,
) -> int:
    """Run a statement that changes a bounded number of rows until it changes none.

    Each run is a transaction of its own, with a check first. What the migration did before is
    committed: keep data and schema in migrations of their own. Returns the number of rows.
    """
    bounded = text(statement) if isinstance(statement, str) else statement
    # A throttled engine would ask for each once more.
    asked = {integration.OPTION: integration.TAGS_ONLY}
    rows = 0
    with op.get_context().autocommit_block():
        for _ in range(max_batches):
            gate.wait()
            changed = op.get_bind().execute(bounded, parameters or {}, execution_options=asked)
            if changed.rowcount <= 0:
                return rows
            rows += changed.rowcount
    message = (
        f"still changed rows after {max_batches} runs ({rows} rows):"
        " it has to pass over those that are done"
    )
    raise InvalidSettings([Fault("statement", message)])
