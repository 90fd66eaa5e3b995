"""What a shell completes: names that the agent knows. Without an agent, nothing.

headgate rule lift r-<TAB> ──GET /v1/rules──► r-1cb202 r-5e21c0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import typer

TIMEOUT_S = 1.0
Complete = Callable[[typer.Context, str], list[str]]


def _names(path: str, read: Callable[[Any], Iterator[Any]], *query: str) -> Complete:
    """`{database}` in the path, or its name in the query: what the command line has for it by then.
    Of a list (`lag,po`) the last one is completed."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from urllib.parse import quote

        from headgate.cli.api import connect
        from headgate.errors import HeadgateError

        given = context.params
        database = given.get("database") or "all"
        asked = {} if database == "all" else dict.fromkeys(query, database)
        before, comma, begun = incomplete.rpartition(",")
        try:
            api = connect(given.get("url"), given.get("token"), timeout_s=TIMEOUT_S)
            told = api.get(path.format(database=quote(database, safe="")), **asked).document
            found = [str(name) for name in read(told)]
        except (HeadgateError, KeyError, TypeError):
            return []
        return sorted({f"{before}{comma}{name}" for name in found if name.startswith(begun)})

    return complete


databases = _names("/v1/status", lambda told: (one["database"] for one in told["databases"]))
metrics = _names("/v1/metrics", lambda told: (one["metric"] for one in told["metrics"]), "database")
members = _names(
    "/v1/databases/{database}/shard", lambda told: (one["member"] for one in told["members"])
)
thresholds = _names(
    "/v1/metrics", lambda told: (f"{one['metric']}=" for one in told["metrics"]), "database"
)
clients = _names(  # And the levels of their names.
    "/v1/clients",
    lambda told: (
        name for one in told["clients"] for name in (one["client"], *one["client"].split(":"))
    ),
)
rules = _names("/v1/rules", lambda told: (one["id"] for one in told["rules"]))
budgets = _names("/v1/budgets/{database}", lambda told: (one["name"] for one in told["budgets"]))


def budgets_or_modes(context: typer.Context, incomplete: str) -> list[str]:
    modes = [mode for mode in ("off", "warn", "enforce") if mode.startswith(incomplete)]
    return [*budgets(context, incomplete), *modes]
