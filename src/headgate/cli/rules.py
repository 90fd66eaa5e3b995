"""Commands on rules: rules, rule ratio, hold, exempt, metrics, thresholds, extend, change,
lift, and the two for a hurry: favor and hold.

A change of a rule is built on the revision it saw (If-Match), as with metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from headgate.cli.options import AsJson, Token, Url

if TYPE_CHECKING:
    from headgate.cli.api import Answered

RULES = "/v1/rules"


def _option(*names: str, metavar: str, about: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, show_default=False)


Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A client, a level of its name, several (a:b), or `all`."
    ),
]
RuleId: TypeAlias = Annotated[str, typer.Argument(metavar="ID")]
Share: TypeAlias = Annotated[
    float, typer.Argument(metavar="RATIO", help="Share of checks to refuse: 0 up to below 1.")
]
For: TypeAlias = Annotated[
    str | None,
    _option("--for", metavar="TIME", about="How long: 90s, 30m, 2h, 7d. Default: 1h."),
]
Until: TypeAlias = Annotated[
    str | None,
    _option(metavar="WHEN", about="Instead of --for: until when, such as 2024-05-17T16:00:00Z."),
]
ScheduleOption: TypeAlias = Annotated[
    str | None,
    _option(
        "--schedule",
        metavar="'DAYS FROM-TO ZONE'",
        about="Only in a recurring window: 'mon-fri 07:00-09:30 Europe/Berlin'.",
    ),
]
OnDatabase: TypeAlias = Annotated[
    str | None, _option("--database", metavar="NAME", about="Only there. Default: everywhere.")
]
Reason: TypeAlias = Annotated[
    str | None, _option(metavar="TEXT", about="Why; shown in answers and in `headgate rules`.")
]
NeededReason: TypeAlias = Annotated[
    str, _option("--reason", metavar="TEXT", about="Why; shown in answers.")
]
Name: TypeAlias = Annotated[
    str | None, _option("--id", metavar="ID", about="Name of the rule. Default: made up.")
]
OrderOption: TypeAlias = Annotated[
    str | None,
    _option(
        "--order",
        metavar="before|after",
        about="Throw the dice before metrics are looked at, or once they have let it. "
        "Default: before.",
    ),
]
LockOut: TypeAlias = Annotated[
    bool, typer.Option("--lock-out", help="With `all`: yes, everybody is to be locked out.")
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be set, and whom it meets; set nothing.")
]
All: TypeAlias = Annotated[
    bool, typer.Option("--all", help="With those that ended within the last day.")
]
Because: TypeAlias = Annotated[
    str,
    _option(
        "--because",
        metavar="transient|incident|system",
        about="A short starvation, an incident's fix, or a light component that is essential.",
    ),
]
Waived: TypeAlias = Annotated[
    list[str] | None,
    _option("--metric", metavar="METRIC", about="Only from this one; repeatable. Default: all."),
]
Ceiling: TypeAlias = Annotated[
    float | None,
    _option(metavar="TIMES", about="Rests above so many times a threshold. Default: 3."),
]
Over: TypeAlias = Annotated[str, typer.Option(metavar="TARGET", help="Over whom.")]
FavorRatio: TypeAlias = Annotated[
    float, typer.Option("--ratio", metavar="RATIO", help="Share of the others' checks to refuse.")
]
NewRatio: TypeAlias = Annotated[
    float | None, _option("--ratio", metavar="RATIO", about="Share of checks to refuse.")
]
NewMetrics: TypeAlias = Annotated[
    list[str] | None, _option("--metric", metavar="METRIC", about="Metrics of it; repeatable.")
]
NewThresholds: TypeAlias = Annotated[
    list[str] | None,
    _option("--threshold", metavar="METRIC=LIMIT", about="Limits of it; repeatable."),
]


# --- looking ---------------------------------------------------------------------------------


def rules(
    ended: All = False, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """List the rules: for whom, what, how long still, by whom and why."""
    from headgate.cli.api import connect
    from headgate.cli.documents import read_list
    from headgate.cli.output import show
    from headgate.cli.rule_pages import RuleRow, rules_page

    answered = connect(url, token).get(RULES, all="true" if ended else None)
    show(
        answered,
        as_json,
        lambda canvas: rules_page(read_list(RuleRow, answered.document, "rules"), canvas),
    )


def show_rule(rule: RuleId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show one rule with all that is known of it, and whom it meets."""
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.rule_pages import RuleRow, rule_page

    answered = connect(url, token).get(rule_path(rule))
    show(answered, as_json, lambda canvas: rule_page(read(RuleRow, answered.document), canvas))


# --- setting ---------------------------------------------------------------------------------


class RatioCommand(TyperCommand):
    """A share below 0 looks like an option: say what is wrong with it, not that there is none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before = ["", *args]
        for last, arg in zip(before, args, strict=False):
            if _NEGATIVE.fullmatch(arg) and not last.startswith("-"):
                message = f"ratio is {arg}, must be 0 up to below 1: the share of checks to refuse"
                raise typer.BadParameter(message, ctx=ctx)
        return super().parse_args(ctx, args)


_NEGATIVE = re.compile(r"-[0-9.][0-9.eE+-]*")


def ratio(
    target: Target,
    share: Share,
    order: OrderOption = None,
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a share of a client's checks, by dice.

    Nobody is ever admitted by a ratio: what is not refused is judged by the metrics as ever.
    """
    given = _given("ratio", target, reason, duration, until, schedule, database, name)
    given |= {"ratio": _finite(share)} | ({"order": order} if order else {})
    _set(given, dry_run, url, token, as_json)


def hold(
    target: Target,
    reason: NeededReason,
    lock_out: LockOut = False,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Refuse every check of a client, for a while and for a reason."""
    given = _given("hold", target, reason, duration, until, schedule, database, name)
    given |= {"lock_out": True} if lock_out else {}
    _set(given, dry_run, url, token, as_json)


def exempt(
    target: Target,
    because: Because,
    reason: NeededReason,
    metric: Waived = None,
    ceiling: Ceiling = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Let a client work though metrics refuse: all of them, or the named ones.

    It harms others, so it is guarded: it rests above its ceiling, and where it starves others.
    """
    given = _given("exempt", target, reason, duration, until, schedule, database, name)
    given["justification"] = because
    given |= {"metrics": metric} if metric else {}
    given |= {"ceiling": _finite(ceiling)} if ceiling is not None else {}
    _set(given, dry_run, url, token, as_json)


def metrics(
    target: Target,
    names: Annotated[list[str], typer.Argument(metavar="METRIC…")],
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Judge a client by these metrics, where its checks name none."""
    given = _given("metrics", target, reason, duration, until, schedule, database, name)
    given["metrics"] = [part for item in names for part in item.split(",") if part]
    _set(given, dry_run, url, token, as_json)


def thresholds(
    target: Target,
    limits: Annotated[list[str], typer.Argument(metavar="METRIC=LIMIT…")],
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Judge a client by stricter thresholds than others."""
    given = _given("thresholds", target, reason, duration, until, schedule, database, name)
    given["thresholds"] = _limits(limits)
    _set(given, dry_run, url, token, as_json)


def favor(
    target: Target,
    over: Over = "all",
    share: FavorRatio = 0.9,
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Favor one client over the others: theirs is refused by ratio, its own is not.

    Two rules in one command, ended by one `headgate rule lift`. New clients count as others.
    """
    from headgate.cli.api import connect

    given = _given("", target, reason, duration, until, schedule, database, None)
    given |= {"over": over, "ratio": _finite(share)}
    changed = connect(url, token).change("POST", f"{RULES}/favor", given, dry_run=dry_run)
    _show_many(changed, "SET", dry_run=dry_run, as_json=as_json)


# --- changing --------------------------------------------------------------------------------


def extend(
    rule: RuleId,
    duration: For = None,
    until: Until = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a rule another end, counted from now; nothing else of it changes."""
    given = _end(duration, until)
    if not given:
        raise typer.BadParameter("say how long: --for 2h, or --until 2024-05-17T16:00:00Z")
    _change(rule, given, dry_run, url, token, as_json)


def change(
    rule: RuleId,
    share: NewRatio = None,
    order: OrderOption = None,
    metric: NewMetrics = None,
    threshold: NewThresholds = None,
    ceiling: Ceiling = None,
    reason: Reason = None,
    schedule: ScheduleOption = None,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Change some of a rule, such as its ratio alone; its end stays."""
    said = {
        "ratio": None if share is None else _finite(share),
        "order": order,
        "metrics": metric,
        "thresholds": _limits(threshold) if threshold else None,
        "ceiling": None if ceiling is None else _finite(ceiling),
        "reason": reason,
        "schedule": schedule,
    }
    given = {key: value for key, value in said.items() if value not in (None, [])}
    if not given:
        raise typer.BadParameter("nothing to change: give a setting, such as --ratio 0.5")
    _change(rule, given, dry_run, url, token, as_json)


def lift(
    rule: RuleId,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """End a rule now, and the one that was set together with it."""
    from headgate.cli.api import connect

    api = connect(url, token)
    etag = api.get(rule_path(rule)).etag
    changed = api.change("DELETE", rule_path(rule), etag=etag, dry_run=dry_run)
    _show_many(changed, "LIFTED", dry_run=dry_run, as_json=as_json)


# --- steps -----------------------------------------------------------------------------------


def rule_path(rule: str) -> str:
    return f"{RULES}/{quote(rule, safe='')}"


def _given(
    kind: str,
    target: str,
    reason: str | None,
    duration: str | None,
    until: str | None,
    schedule: str | None,
    database: str | None,
    name: str | None,
) -> dict[str, Any]:
    """Only what was said: the agent knows the defaults."""
    said = {
        "kind": kind or None,
        "target": target,
        "reason": reason,
        "schedule": schedule,
        "database": database,
        "id": name,
    }
    return {key: value for key, value in said.items() if value is not None} | _end(duration, until)


def _end(duration: str | None, until: str | None) -> dict[str, str]:
    """A bare number is seconds, as with the other commands."""
    if duration is not None and duration.isdigit():
        duration = f"{duration}s"
    said = {"for": duration, "expires_at": until}
    return {key: value for key, value in said.items() if value is not None}


def _finite(given: float) -> float:
    """The rest is the agent's to judge; but JSON has no word for these."""
    if not isfinite(given):
        raise typer.BadParameter(f"{given} is no number to go by")
    return given


def _limits(given: list[str]) -> dict[str, float]:
    limits = {}
    for pair in given:
        name, equals, limit = pair.partition("=")
        try:
            limits[name] = _finite(float(limit))
        except ValueError:
            equals = ""
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} must read METRIC=LIMIT, such as lag=2")
    return limits


def _set(
    given: Mapping[str, Any], dry_run: bool, url: str | None, token: str | None, as_json: bool
) -> None:
    from headgate.cli.api import connect
    from headgate.cli.replay import last_hour

    api = connect(url, token)
    changed = api.change("POST", RULES, given, dry_run=dry_run)
    past = last_hour(api, given) if dry_run and not as_json else ""
    _show_one(changed, "SET", dry_run=dry_run, as_json=as_json, past=past)


def _change(
    rule: str,
    given: Mapping[str, Any],
    dry_run: bool,
    url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    from headgate.cli.api import connect

    api = connect(url, token)
    etag = api.get(rule_path(rule)).etag
    changed = api.change("PATCH", rule_path(rule), given, etag=etag, dry_run=dry_run)
    _show_one(changed, "CHANGED", dry_run=dry_run, as_json=as_json)


def _show_one(
    changed: Answered, done: str, *, dry_run: bool, as_json: bool, past: str = ""
) -> None:
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.rule_pages import RuleRow, changed_page

    show(
        changed,
        as_json,
        lambda canvas: changed_page(
            [read(RuleRow, changed.document)], done, canvas, dry_run=dry_run, past=past
        ),
    )


def _show_many(changed: Answered, done: str, *, dry_run: bool, as_json: bool) -> None:
    from headgate.cli.documents import read_list
    from headgate.cli.output import show
    from headgate.cli.rule_pages import RuleRow, changed_page

    show(
        changed,
        as_json,
        lambda canvas: changed_page(
            read_list(RuleRow, changed.document, "rules"), done, canvas, dry_run=dry_run
        ),
    )
