"""Commands on rules: rules, rule ratio, hold, exempt, metrics, thresholds, extend, change,
lift, and the two for a hurry: favor and hold.

A change of a rule is built on the revision it saw (If-Match), as with metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from headgate.cli import completing
from headgate.cli.confirm import Yes
from headgate.cli.given import lasting
from headgate.cli.given import ratio as ratio_of
from headgate.cli.options import AsJson, Token, Url
from headgate.cli.reaching import (
    FLEET_TIMEOUT_S,
    FleetWide,
    InCluster,
    InRegion,
    InShard,
    OnHost,
    confirmed,
    copies_line,
    reach_of,
    reached_line,
)

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api

RULES = "/v1/rules"


def _option(*names: str, metavar: str, about: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, show_default=False)


Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        autocompletion=completing.clients,
        help="A client, a level of its name, several (a:b), or `all`.",
    ),
]
RuleId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", autocompletion=completing.rules)]
Share: TypeAlias = Annotated[
    float,
    typer.Argument(
        metavar="RATIO", parser=ratio_of, help="Share of checks to reject, such as 0.5 or 50%."
    ),
]
For: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TIME",
        parser=lasting,
        show_default=False,
        help="How long: 90s, 30m, 2h, 7d. Default: 1h.",
    ),
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
    float,
    typer.Option(
        "--ratio",
        metavar="RATIO",
        parser=ratio_of,
        help="Share of the others' checks to reject, such as 0.9 or 90%.",
    ),
]
NewRatio: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--ratio",
        metavar="RATIO",
        parser=ratio_of,
        show_default=False,
        help="Share of checks to reject, such as 0.5 or 50%.",
    ),
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
    from headgate.cli.output import show_view
    from headgate.present.rules import rules_view
    from headgate.wire.rules import RulesDoc

    answered = connect(url, token).get(RULES, all="true" if ended else None)
    show_view(answered, as_json, RulesDoc, rules_view)


def show_rule(rule: RuleId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show one rule with all that is known of it, and whom it meets."""
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.present.rules import rule_view
    from headgate.wire.rules import RuleDoc

    show_view(connect(url, token).get(rule_path(rule)), as_json, RuleDoc, rule_view)


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
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a share of a client's checks, by dice.

    Nobody is ever admitted by a ratio: what is not refused is judged by the metrics as ever.
    """
    given = _given("ratio", target, reason, duration, until, schedule, database, name)
    given |= {"ratio": _finite(share)} | ({"order": order} if order else {})
    reach = reach_of(fleet, region, cluster, shard, host)
    _set(given, Wanted(reach, dry_run, yes, as_json), url, token)


def hold(
    target: Target,
    reason: NeededReason,
    lock_out: LockOut = False,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Refuse every check of a client, for a while and for a reason."""
    given = _given("hold", target, reason, duration, until, schedule, database, name)
    given |= {"lock_out": True} if lock_out else {}
    reach = reach_of(fleet, region, cluster, shard, host)
    _set(given, Wanted(reach, dry_run, yes, as_json), url, token)


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
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
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
    reach = reach_of(fleet, region, cluster, shard, host)
    _set(given, Wanted(reach, dry_run, yes, as_json), url, token)


def metrics(
    target: Target,
    names: Annotated[list[str], typer.Argument(metavar="METRIC…")],
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Judge a client by these metrics, where its checks name none."""
    given = _given("metrics", target, reason, duration, until, schedule, database, name)
    given["metrics"] = [part for item in names for part in item.split(",") if part]
    reach = reach_of(fleet, region, cluster, shard, host)
    _set(given, Wanted(reach, dry_run, yes, as_json), url, token)


def thresholds(
    target: Target,
    limits: Annotated[list[str], typer.Argument(metavar="METRIC=LIMIT…")],
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    name: Name = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Judge a client by stricter thresholds than others."""
    given = _given("thresholds", target, reason, duration, until, schedule, database, name)
    given["thresholds"] = _limits(limits)
    reach = reach_of(fleet, region, cluster, shard, host)
    _set(given, Wanted(reach, dry_run, yes, as_json), url, token)


def favor(
    target: Target,
    over: Over = "all",
    share: FavorRatio = 0.9,
    reason: Reason = None,
    duration: For = None,
    until: Until = None,
    schedule: ScheduleOption = None,
    database: OnDatabase = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Favor one client over the others: theirs is refused by ratio, its own is not.

    Two rules in one command, ended by one `headgate rule lift`. New clients count as others.
    """
    given = _given("", target, reason, duration, until, schedule, database, None)
    given |= {"over": over, "ratio": _finite(share)}
    wanted = Wanted(reach_of(fleet, region, cluster, shard, host), dry_run, yes, as_json)
    changed = _posted(_connected(wanted, url, token), f"{RULES}/favor", given, wanted)
    _show_many(changed, "SET", dry_run=dry_run, as_json=as_json)


# --- changing --------------------------------------------------------------------------------


def extend(
    rule: RuleId,
    duration: For = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a rule another end, counted from now; nothing else of it changes."""
    given = _end(duration, until)
    if not given:
        raise typer.BadParameter("say how long: --for 2h, or --until 2024-05-17T16:00:00Z")
    _change(rule, given, Wanted(None, dry_run, yes, as_json), url, token)


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
    yes: Yes = False,
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
    _change(rule, given, Wanted(None, dry_run, yes, as_json), url, token)


def lift(
    rule: RuleId,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """End a rule now, and the one that was set together with it."""
    wanted = Wanted(None, dry_run, yes, as_json)
    changed = _altered("DELETE", rule, None, wanted, url, token)
    _show_many(changed, "LIFTED", dry_run=dry_run, as_json=as_json)


def rest(
    rule: RuleId,
    reason: NeededReason,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Have a rule of the fleet or the shard rest at the asked agent.

    As if it were not there: for when the fleet's store cannot be reached, or nobody leads the
    shard, so that nobody can lift it. `headgate rule wake` ends that; so does a rule that is set
    anew.
    """
    from headgate.cli.api import connect

    path = f"{rule_path(rule)}/rest"
    changed = connect(url, token).change("PUT", path, {"reason": reason}, dry_run=dry_run)
    _show_many(changed, "RESTS HERE", dry_run=dry_run, as_json=as_json)


def wake(
    rule: RuleId,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Let a rule count again that rests at the asked agent."""
    from headgate.cli.api import connect

    changed = connect(url, token).change("DELETE", f"{rule_path(rule)}/rest", dry_run=dry_run)
    _show_many(changed, "COUNTS AGAIN", dry_run=dry_run, as_json=as_json)


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
    said = {"for": duration, "expires_at": until}
    return {key: value for key, value in said.items() if value is not None}


def _finite(given: float) -> float:
    """The rest is the agent's to judge; but JSON has no word for these."""
    if not isfinite(given):
        raise typer.BadParameter(f"{given} is no number to go by")
    return given


def _limits(given: list[str]) -> dict[str, float | str]:
    """`lag=2` or `lag=2s`; whether it is in the metric's unit is the agent's to say."""
    from headgate.core.settings import amount

    limits: dict[str, float | str] = {}
    for pair in given:
        name, _, limit = pair.partition("=")
        try:
            limits[name] = _finite(float(limit))
        except ValueError:
            try:
                amount(0, 1e18)(limit)
            except ValueError:
                name = ""
            limits[name] = limit
        if not name:
            raise typer.BadParameter(f"{pair!r} must read METRIC=LIMIT, such as lag=2s")
    return limits


class Wanted(NamedTuple):
    """How a rule is to be set."""

    reach: str | None
    """None: nothing was said of it."""
    dry_run: bool
    yes: bool
    as_json: bool


def _set(given: Mapping[str, Any], wanted: Wanted, url: str | None, token: str | None) -> None:
    from headgate.cli.replay import last_hour

    api = _connected(wanted, url, token)
    changed = _posted(api, RULES, given, wanted)
    tried = wanted.dry_run and not wanted.as_json
    is_asked = changed.document.get("clients_total") is not None
    past = last_hour(api, given) if tried and is_asked else ""
    _show_one(changed, "SET", dry_run=wanted.dry_run, as_json=wanted.as_json, past=past)


def _connected(wanted: Wanted, url: str | None, token: str | None) -> Api:
    from headgate.cli.api import DEFAULT_TIMEOUT_S, connect

    fleet_wide = wanted.reach is not None
    return connect(url, token, timeout_s=FLEET_TIMEOUT_S if fleet_wide else DEFAULT_TIMEOUT_S)


def _posted(api: Api, path: str, given: Mapping[str, Any], wanted: Wanted) -> Answered:
    body = given if wanted.reach is None else {**given, "reach": wanted.reach}
    change = partial(api.change, "POST", path, body)
    return confirmed(change, wanted.reach, dry_run=wanted.dry_run, yes=wanted.yes)


def _change(
    rule: str, given: Mapping[str, Any], wanted: Wanted, url: str | None, token: str | None
) -> None:
    changed = _altered("PATCH", rule, given, wanted, url, token)
    _show_one(changed, "CHANGED", dry_run=wanted.dry_run, as_json=wanted.as_json)


def _altered(
    method: str,
    rule: str,
    given: Mapping[str, Any] | None,
    wanted: Wanted,
    url: str | None,
    token: str | None,
) -> Answered:
    """Built on what was seen."""
    from headgate.cli.api import connect

    api, path = connect(url, token, timeout_s=FLEET_TIMEOUT_S), rule_path(rule)
    seen = api.get(path)
    of = seen.document.get("reach")
    reach = f"{rule}, {of}" if isinstance(of, str) else None
    change = partial(api.change, method, path, given, etag=seen.etag)
    return confirmed(change, reach, dry_run=wanted.dry_run, yes=wanted.yes)


def _show_one(
    changed: Answered, done: str, *, dry_run: bool, as_json: bool, past: str = ""
) -> None:
    from headgate.cli.output import show_view
    from headgate.present.rules import changed_view
    from headgate.wire.rules import RuleDoc

    told = reached_line(changed.document) or copies_line(changed.document)
    how: dict[str, Any] = {"dry_run": dry_run, "reached": told, "past": past}
    show_view(changed, as_json, RuleDoc, lambda rule: changed_view([rule], done, **how))


def _show_many(changed: Answered, done: str, *, dry_run: bool, as_json: bool) -> None:
    from headgate.cli.output import show_view
    from headgate.present.rules import changed_view
    from headgate.wire.rules import RulesDoc

    told = reached_line(changed.document) or copies_line(changed.document)
    how: dict[str, Any] = {"dry_run": dry_run, "reached": told}
    show_view(changed, as_json, RulesDoc, lambda found: changed_view(found.rules, done, **how))
