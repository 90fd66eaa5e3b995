"""`headgate replay`: what a proposed rule would have changed (R145). Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.options import AsJson, Token, Url
from headgate.errors import Fault, HeadgateError, InvalidSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headgate.cli.api import Api
    from headgate.cli.render import Canvas
    from headgate.wire.history import ReplayDoc, ReplayRowDoc

MAX_FILE_BYTES = 64 * 1024
MAX_ROWS = 200

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
    from headgate.cli.documents import read
    from headgate.cli.history import LOOK_BACK_TIMEOUT_S, minutes_ago
    from headgate.cli.output import show
    from headgate.wire.history import ReplayDoc

    now = datetime.now().astimezone()
    body = {"rule": read_rule(rule_file), "since": f"{minutes_ago(since, now)}m"}
    api = connect(url, token, timeout_s=LOOK_BACK_TIMEOUT_S)
    answered = api.change("POST", "/v1/replay", body)
    show(
        answered,
        as_json,
        lambda canvas: replay_page(read(ReplayDoc, answered.document), canvas, None),
    )


def last_hour(api: Api, rule: Mapping[str, Any]) -> str:
    """In one line, for a dry run, of the checks of one agent; empty where it cannot say: it is no
    part of the change."""
    from headgate.cli.documents import read
    from headgate.wire.history import ReplayDoc

    try:
        answered = api.change("POST", "/v1/replay", {"rule": rule, "since": "1h"})
        total = read(ReplayDoc, answered.document).total
    except HeadgateError:
        return ""
    if not total.checks:
        return "nobody whom it is meant for has asked this agent within the last hour"
    low, high = _number(total.admitted_low), _number(total.admitted_high)
    after = low if low == high else f"{low} to {high}"
    return (
        f"within the last hour, of {total.checks:,} checks here {total.admitted_before:,} were "
        f"admitted; with this rule {after} (headgate replay tells more)"
    )


def read_rule(path: Path) -> Mapping[str, Any]:
    """The settings of one rule, on the top level or under `[rule]`; the agent judges them."""
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


# --- the page ------------------------------------------------------------------------------


def replay_page(replay: ReplayDoc, canvas: Canvas, zone: tzinfo | None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from headgate.cli.words import plain

    parts: list[RenderableType] = [_head(replay, canvas, zone)]
    if replay.rows:
        parts += [Text(), _table(replay.rows[:MAX_ROWS], canvas, zone)]
    if len(replay.rows) > MAX_ROWS:
        parts.append(Text(f"and {len(replay.rows) - MAX_ROWS:,} more; --json lists them"))
    if replay.more_rows:
        told = f"and {replay.more_rows:,} in which less changes; the totals are of all"
        parts.append(Text(told, style="dim"))
    parts += [Text(), *(Text(plain(note), style="dim") for note in replay.notes)]
    if not replay.whole:
        told = "There was more history than is replayed at once: it begins later than asked for."
        parts.append(Text(told, style="yellow"))
    return Group(*parts)


def _head(replay: ReplayDoc, canvas: Canvas, zone: tzinfo | None) -> RenderableType:
    from rich.text import Text

    from headgate.cli.timeline import times_of
    from headgate.cli.words import plain

    total = replay.total
    after = range_text(total.admitted_low, total.admitted_high, canvas)
    span = canvas.marks.dash.join(times_of(replay.since, replay.until, zone))
    head = Text().append(f"{plain(replay.kind)} on {plain(replay.target)}", style="bold")
    head.append(f"  {span}  ", style="dim")
    head.append(f"{total.checks:,} checks: {total.admitted_before:,} admitted then, ")
    return head.append(f"{after} with the rule", style="bold")


def _table(rows: Sequence[ReplayRowDoc], canvas: Canvas, zone: tzinfo | None) -> RenderableType:
    from rich.text import Text

    from headgate.cli.render import plain_table
    from headgate.cli.timeline import time_of
    from headgate.cli.words import plain

    numbers = frozenset({"checks", "admitted", "refused", "then admitted", "then refused"})
    table = plain_table(
        *("hour", "client", "checks", "admitted", "refused", "then admitted", "then refused"),
        "how",
        right=numbers,
    )
    for row in rows:
        refused = (row.checks - row.admitted_high, row.checks - row.admitted_low)
        table.add_row(
            Text(f"{time_of(row.hour, zone):%d %b %H:%M}"),
            Text(plain(row.client)),
            Text(f"{row.checks:,}"),
            Text(f"{row.admitted_before:,}"),
            Text(f"{row.refused_before:,}"),
            Text(range_text(row.admitted_low, row.admitted_high, canvas), style="bold"),
            Text(range_text(*refused, canvas), style="bold"),
            Text(_how(row)),
        )
    return table


def _how(row: ReplayRowDoc) -> str:
    if row.shadowed_by:
        return f"as before: {row.shadowed_by} comes first"
    return "cannot tell" if row.how == "unknown" else row.how


def range_text(low: float, high: float, canvas: Canvas) -> str:
    first, last = _number(low), _number(high)
    return first if first == last else f"{first}{canvas.marks.dash}{last}"


def _number(value: float) -> str:
    """A few of many are told to the tenth: half a check is an average, not none."""
    return f"{value:.1f}" if value < 10 and round(value, 1) % 1 else f"{value:,.0f}"
