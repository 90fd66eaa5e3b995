"""dbt.   python -m headgate.integrations.dbt build … ──► dbt; each node checks before it starts

dbt's own hooks are SQL, which cannot wait for an admission. Its programmatic runner calls its
listeners, in the node's own thread, before a node touches the database: there we wait. What is
raised there is an error of that node, and dbt skips the nodes that depend on it. With
`--threads 4` four nodes wait independently of each other.

Settings come from the environment: HEADGATE_APP (`dbt` by default), HEADGATE_DATABASE (`main`),
HEADGATE_URL, HEADGATE_MAX_WAIT_S. Tags are written by dbt itself, with `query-comment`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from dbt.cli.main import dbtRunner

from headgate import Client

# Of these nodes each is a piece of work in the database.
WORKING = frozenset({"model", "seed", "snapshot", "test", "unit_test"})
EXIT_CODES = {True: 0, False: 1}
CRASHED = 2


class WaitBeforeNodes:
    """For `dbtRunner(callbacks=[…])`."""

    def __init__(self, gate: Client) -> None:
        self._gate = gate

    def __call__(self, event: Any) -> None:
        if event.info.name == "LogStartLine" and event.data.node_info.resource_type in WORKING:
            self._gate.wait()


def run(arguments: Sequence[str], gate: Client) -> int:
    """dbt's exit code."""
    result = dbtRunner(callbacks=[WaitBeforeNodes(gate)]).invoke(list(arguments))
    return CRASHED if result.exception else EXIT_CODES[bool(result.success)]


def main() -> int:
    said = os.environ  # noqa: TID251 -- dbt's command line leaves no room for options of ours
    limit_s = said.get("HEADGATE_MAX_WAIT_S")
    with Client(
        said.get("HEADGATE_APP", "dbt"),
        database=tuple(said.get("HEADGATE_DATABASE", "main").split(",")),
        max_wait_s=None if limit_s is None else float(limit_s),
    ) as gate:
        return run(sys.argv[1:], gate)


if __name__ == "__main__":
    sys.exit(main())
