"""`headgate budget replay`: what a policy would have changed. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.options import AsJson, DatabaseArgument, Token, Url
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.cli.api import Api

TIMEOUT_S = 60.0

ReplayFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="The policy: TOML, or JSON if its name ends so. Default: the one in force, which "
        "shows how close a replay is to what happened.",
    ),
]
Last = Annotated[str, typer.Option(metavar="TIME", help="The last 10m, 1h, up to 24h.")]
By = Annotated[
    str,
    typer.Option(
        metavar="KEY,…",
        help="Tell clients apart by it: username, database, application_name, remote_address, "
        "query, tag.NAME.",
    ),
]


def replay(
    database: DatabaseArgument,
    path: ReplayFile = None,
    last: Last = "1h",
    by: By = "username",
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Play what statements did against another policy, and print what would have changed.

    By budget and client: what would have run, been warned of, waited or been blocked, beside
    what happened. Counts of statements that were drawn, and not all traced, are estimates.
    """
    from headgate.budgets.replay_api import BudgetReplayDoc
    from headgate.cli.api import connect
    from headgate.cli.budget import policy_path
    from headgate.cli.output import show_view
    from headgate.present.budget_replay import replay_view

    body: dict[str, Any] = {"since_s": _seconds(last), "by": [k for k in by.split(",") if k]}
    if path is not None:
        body["policy"] = _document(path)
    api = connect(url, token, timeout_s=TIMEOUT_S)
    answered = api.change("POST", policy_path(database, "replay"), body)
    show_view(answered, as_json, BudgetReplayDoc, replay_view)


def _seconds(last: str) -> float:
    from headgate.rules.times import parse_for

    try:
        return float(parse_for(last))
    except ValueError as fault:
        raise typer.BadParameter(f"--last {fault}") from None


def _document(path: Path) -> Mapping[str, Any]:
    from headgate.budgets.parse import written
    from headgate.settings.document import load_policy

    return written(load_policy(path))


def last_hour(api: Api, document: Mapping[str, Any], log: str | None) -> list[str]:
    """What a file of changes would have done to statements, one line for each database whose
    budgets it changes; nothing where the agent cannot say: it is no part of the change."""
    from headgate.budgets.api import PoliciesDoc
    from headgate.budgets.replay_api import BudgetReplayDoc
    from headgate.cli.budget import BUDGETS, policy_path
    from headgate.cli.documents import read
    from headgate.present.budget_replay import last_hour_told

    if not any(document.get(section) for section in ("budgets", "policies")):
        return []
    told, body = [], {"changes": document, **({} if log is None else {"log": log})}
    try:
        known = read(PoliciesDoc, api.get(BUDGETS, most="0").document)
        for policy in known.databases:
            answered = api.change("POST", policy_path(policy.database, "replay"), body)
            found = read(BudgetReplayDoc, answered.document)
            if found.difference_total:
                told.append(f"{policy.database}: {last_hour_told(found)}")
    except HeadgateError:
        return told
    return told
