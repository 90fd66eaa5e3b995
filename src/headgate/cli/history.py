"""History of clients and levels: when it was mostly throttled, by what; and replay of a rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.base.units import parse_seconds
from headgate.cli.options import (
    EVERY_DATABASE,
    LOOK_BACK_TIMEOUT_S,
    AgentOptions,
    AnyClient,
    DatabaseOrAll,
    Since,
)
from headgate.errors import Fault, HeadgateError, InvalidRequest, InvalidSettings

if TYPE_CHECKING:
    from headgate.cli.api import Api
    from headgate.history.unthrottled_api import UnthrottledDoc

MAX_AGO_S = 1e9


STEPS_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440)
MAX_ROWS = 36


def step_of(minutes: int) -> str:
    """The finest round step that makes no more rows than fit a screen."""
    fitting = [step for step in STEPS_MINUTES if minutes / step <= MAX_ROWS]
    return f"{fitting[0] if fitting else -(-minutes // MAX_ROWS)}m"


def _ago_s(text: str) -> float | None:
    """Of `30m` or `1h30m`. A bare number is rejected: 30 is what?"""
    try:
        return parse_seconds(text)
    except ValueError as error:
        if text.isdecimal():
            raise typer.BadParameter(f"the time {error}") from None
        return None


def minutes_ago(text: str, now: datetime, zone: tzinfo | None = None) -> int:
    """As minutes, so that the minute of that instant is the first."""
    begin = instant(text, now, zone)
    if begin is None or begin.timestamp() >= now.timestamp():
        raise typer.BadParameter(
            f"{text!r} is no time in the past: 30m, 7d, today, yesterday, 07:00 or 2026-03-01T07:00"
        )
    seconds = now.timestamp() - begin.timestamp()
    return max(1, int(-(-seconds // 60) if _ago_s(text) else seconds // 60))


def span_since(text: str) -> str:
    """`--since` as the agent takes it: `390m`."""
    return f"{minutes_ago(text, datetime.now().astimezone())}m"


def instant(text: str, now: datetime, zone: tzinfo | None = None) -> datetime | None:
    """`yesterday`, `today`, `07:00`, `2026-03-01`, `2026-03-01T07:00`, or `30m` ago; else None.

    Times without a zone are those of `zone`; None for this machine's, as it is, or was, on that
    day: yesterday's 07:00 may have been an hour nearer, or farther, than today's.
    """
    if (ago_s := _ago_s(text)) is not None:
        return now - timedelta(seconds=min(ago_s, MAX_AGO_S))
    clock = now.astimezone(zone).replace(tzinfo=None)
    midnight = clock.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("today", "yesterday"):
        return _at(midnight - timedelta(days=text == "yesterday"), zone)
    try:
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", text):
            at = datetime.combine(clock.date(), time.fromisoformat(text.zfill(5)))
            return _at(at if at < clock else at - timedelta(days=1), zone)
        given = datetime.fromisoformat(text)
    except ValueError:
        return None
    return _at(given, zone) if given.tzinfo is None else given


def moment(text: str, now: datetime, zone: tzinfo | None = None) -> str:
    """`07:10`, `yesterday`, `2026-03-01T07:10`, `90m`, as the agent wants it."""
    at = instant(text, now, zone)
    if at is None or at > now:
        raise typer.BadParameter(
            f"{text!r} is no time in the past: 90m, 07:10 or 2026-03-01T07:10", param_hint="--at"
        )
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _at(clock: datetime, zone: tzinfo | None) -> datetime:
    """What the wall clock showed, as an instant."""
    return clock.astimezone() if zone is None else clock.replace(tzinfo=zone)


# --- the command ---------------------------------------------------------------------------

Until = Annotated[
    str | None,
    typer.Option(metavar="TIME", show_default=False, help="Up to when; as --since. Default: now."),
]
Level = Annotated[
    int | None,
    typer.Option(
        min=1, max=8, show_default=False, help="Group by this level of the clients' names: 1, 2, …"
    ),
]
Step = Annotated[
    str | None,
    typer.Option(metavar="TIME", show_default=False, help="How long one bar is: 5m, 1h."),
]


def history(
    app: AnyClient = None,
    since: Since = "1h",
    until: Until = None,
    database: DatabaseOrAll = "main",
    level: Level = None,
    step: Step = None,
    *,
    agent: AgentOptions,
) -> None:
    """Show when a client or a level was throttled, by what, and which of its clients most.

    Times without a zone are this machine's.
    """
    now = datetime.now().astimezone()
    since_m, until_m = minutes_ago(since, now), 0
    if until:  # Up to an instant: the minute that begins with it is not included.
        until_m = minutes_ago(until, now) + (0 if _ago_s(until) else 1)
    api = agent.connect(timeout_s=LOOK_BACK_TIMEOUT_S)
    answered = api.get(
        "/v1/history/timeline",
        app=app,
        database=None if database == EVERY_DATABASE else database,
        since=f"{since_m}m",
        until=f"{until_m}m" if until else None,
        level=None if level is None else str(level),
        step=step or step_of(since_m - until_m),
    )
    without = [] if agent.as_json else unthrottled(api, app, since_m)
    agent.show(answered, "history.timeline_view", without=without)


def unthrottled(api: Api, app: str | None, since_minutes: int) -> Sequence[UnthrottledDoc]:
    """Clients that went without a throttler; none, where the agent is too old to know."""
    from headgate.cli.documents import read
    from headgate.history.unthrottled_api import UnthrottledsDoc

    try:
        answered = api.get("/v1/unthrottled", since=f"{since_minutes}m", app=app)
    except InvalidRequest:
        return []
    return read(UnthrottledsDoc, answered.document).unthrottled


# --- replay --------------------------------------------------------------------------------------

# `headgate replay`: what a proposed rule would have changed. Changes nothing.

MAX_FILE_BYTES = 64 * 1024

RuleFile = Annotated[
    Path,
    typer.Option("--with", metavar="FILE", help="The rule, as TOML or JSON: target, kind, ratio…"),
]


def replay(
    rule_file: RuleFile,
    since: Since = "1h",
    *,
    agent: AgentOptions,
) -> None:
    """Replay recorded decisions against a proposed rule, and print the difference.

    The result is exact, between two numbers, or "cannot tell", depending on what history has.
    """
    body = {"rule": read_rule(rule_file), "since": span_since(since)}
    api = agent.connect(timeout_s=LOOK_BACK_TIMEOUT_S)
    agent.show(api.change("POST", "/v1/replay", body), "history.replay_view")


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
