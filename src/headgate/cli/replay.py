"""`headgate replay`: what a proposed rule would have changed. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.options import AsJson, Token, Url
from headgate.errors import Fault, HeadgateError, InvalidSettings

if TYPE_CHECKING:
    from headgate.cli.api import Api

MAX_FILE_BYTES = 64 * 1024

RuleFile = Annotated[
    Path,
    typer.Option("--with", metavar="FILE", help="The rule, as TOML or JSON: target, kind, ratio…"),
]
Since = Annotated[
    str, typer.Option(metavar="TIME", help="History from then on: 1h, 7d, yesterday, 07:00.")
]


def replay(
    rule_file: RuleFile,
    since: Since = "1h",
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded decisions against a proposed rule, and print the difference.

    Exact where it can be, between two numbers or "cannot tell" where history does not say.
    """
    from headgate.cli.api import connect
    from headgate.cli.history import LOOK_BACK_TIMEOUT_S, minutes_ago
    from headgate.cli.output import show_view
    from headgate.history.api import ReplayDoc
    from headgate.present.history import replay_view

    now = datetime.now().astimezone()
    body = {"rule": read_rule(rule_file), "since": f"{minutes_ago(since, now)}m"}
    api = connect(url, token, timeout_s=LOOK_BACK_TIMEOUT_S)
    show_view(api.change("POST", "/v1/replay", body), as_json, ReplayDoc, replay_view)


def last_hour(api: Api, rule: Mapping[str, Any]) -> str:
    """In one line, for a dry run, of the checks of one agent; empty where it cannot say: it is no
    part of the change."""
    from headgate.cli.documents import read
    from headgate.history.api import ReplayDoc
    from headgate.present.history import last_hour_told

    try:
        answered = api.change("POST", "/v1/replay", {"rule": rule, "since": "1h"})
        return last_hour_told(read(ReplayDoc, answered.document))
    except HeadgateError:
        return ""


def read_rule(path: Path) -> Mapping[str, Any]:
    """The settings of one rule, on the top level or under `[rule]`; the agent validates them."""
    import json
    import tomllib

    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ValueError(f"has more than {MAX_FILE_BYTES} bytes")
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text.decode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidSettings([Fault("--with", f"cannot be read: {reason}")], str(path)) from None
    except ValueError as error:
        raise InvalidSettings([Fault("--with", f"is no rule: {error}")], str(path)) from None
    found = raw.get("rule", raw) if isinstance(raw, dict) else None
    if not isinstance(found, dict):
        message = 'must hold the settings of one rule, such as target = "etl" and ratio = 0.5'
        raise InvalidSettings([Fault("--with", message)], str(path))
    return found
