"""Commands that change metrics at run time: metrics add, set, remove, revert.

A change is built on the revision it saw (If-Match): what somebody else did in between is
never overwritten, the agent answers 412 and the command says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from headgate.cli.confirm import Yes, confirm
from headgate.cli.options import AsJson, DatabaseArgument, DryRun, MetricArgument, Token, Url
from headgate.cli.reaching import (
    FLEET_TIMEOUT_S,
    FleetWide,
    InCluster,
    InRegion,
    InShard,
    OnHost,
    ask_for,
    reach_of,
    reached_line,
)

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api
    from headgate.wire.status import MetricView


# A dry run waits for one probe, and this for the way there and back.
AROUND_A_PROBE_S = 2.0


def _option(*names: str, metavar: str, about: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, show_default=False)


Threshold: TypeAlias = Annotated[
    float | None,
    _option(metavar="NUMBER", about="Refuse beyond this; 0 restores the default."),
]
Comparison: TypeAlias = Annotated[
    str | None,
    _option(metavar="'>'|'>='", about="Refuse above the threshold, or at it, too."),
]
Debounce: TypeAlias = Annotated[
    str | None,
    _option(
        metavar="'M of N'",
        about="Refuse only when M of the last N values breach.",
    ),
]
Absence: TypeAlias = Annotated[
    str | None,
    _option(
        metavar="reject|hold|ignore",
        about="What a missing value means: refuse, hold the last value, or pass.",
    ),
]
Hold: TypeAlias = Annotated[
    float | None,
    _option(
        "--hold",
        metavar="SECONDS",
        about="With --absence hold: how long the last value may stand in.",
    ),
]
Interval: TypeAlias = Annotated[
    float | None,
    _option("--interval", metavar="SECONDS", about="Time between two probes."),
]
Timeout: TypeAlias = Annotated[
    float | None,
    _option("--timeout", metavar="SECONDS", about="When a probe is given up."),
]
MaxAge: TypeAlias = Annotated[
    float | None,
    _option("--max-age", metavar="SECONDS", about="Age at which a value is stale."),
]
Sql: TypeAlias = Annotated[
    str | None, _option(metavar="QUERY", about="One SELECT that answers one number.")
]
FromUrl: TypeAlias = Annotated[
    str | None,
    _option(
        "--from-url",
        metavar="URL",
        about="Address that answers a number, JSON or Prometheus text (--url is the agent's).",
    ),
]
Pointer: TypeAlias = Annotated[
    str | None,
    _option(metavar="POINTER", about="With --from-url: JSON pointer to the number."),
]
Series: TypeAlias = Annotated[
    str | None,
    _option(metavar="SERIES", about="With --from-url: Prometheus series."),
]
Command: TypeAlias = Annotated[
    str | None,
    _option(
        metavar="'PROGRAM ARG…'",
        about="Program that prints the number; only where the agent allows it.",
    ),
]
Plugin: TypeAlias = Annotated[str | None, _option(metavar="NAME", about="Plug-in that reads it.")]
Mode: TypeAlias = Annotated[
    str | None,
    _option(
        metavar="gauge|rate",
        about="The number as it is, or its increase per second.",
    ),
]
Unit: TypeAlias = Annotated[
    str | None, _option(metavar="UNIT", about="Unit to show beside the value.")
]
Option: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--option",
        metavar="KEY=VALUE",
        about="Option of the built-in metric or plug-in; repeatable. JSON, or else text.",
    ),
]
Enabled: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--enabled/--disabled",
        show_default=False,
        help="Whether it takes part at all.",
    ),
]
ScopeSetting: TypeAlias = Annotated[
    str | None,
    _option(
        "--scope",
        metavar="host|shard",
        about="In a shard: where a check that names no scope looks.",
    ),
]
RollupBy: TypeAlias = Annotated[
    str | None,
    _option(
        "--rollup",
        metavar="max|min|sum|mean|unhealthy|quorum|NAME",
        about="How members' values become the shard's.",
    ),
]
RollupOf: TypeAlias = Annotated[
    str | None,
    _option("--rollup-of", metavar="replicas|all|primary", about="Whose values are rolled up."),
]
RollupLabel: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--rollup-label",
        metavar="KEY=VALUE",
        about="Only members that carry this label; repeatable.",
    ),
]
RollupLimit: TypeAlias = Annotated[
    float | None,
    _option(
        "--rollup-limit",
        metavar="NUMBER",
        about="With --rollup unhealthy: how many members may be.",
    ),
]
Quorum: TypeAlias = Annotated[
    int | None,
    _option(metavar="NUMBER", about="With --rollup quorum: how many members must be healthy."),
]
IgnoreHosts: TypeAlias = Annotated[
    int | None,
    _option("--ignore-hosts", metavar="NUMBER", about="Leave out up to so many of the worst."),
]
IgnoreAbove: TypeAlias = Annotated[
    float | None,
    _option(
        "--ignore-above",
        metavar="NUMBER",
        about="With --ignore-hosts: leave out only what is above this.",
    ),
]
Missing: TypeAlias = Annotated[
    str | None,
    _option(metavar="reject|ignore", about="What a member without a value does to its shard."),
]
MissingFor: TypeAlias = Annotated[
    float | None,
    _option(
        "--missing-for",
        metavar="SECONDS",
        about="How long a missing member holds up its shard before it is set aside.",
    ),
]
Empty: TypeAlias = Annotated[
    str | None,
    _option(metavar="reject|admit", about="When no member is left to roll up."),
]
Grace: TypeAlias = Annotated[
    float | None,
    _option(
        "--grace",
        metavar="SECONDS",
        about="How long a member that has just joined may be unhealthy without counting.",
    ),
]
HopelessFor: TypeAlias = Annotated[
    float | None,
    _option(
        "--hopeless-for",
        metavar="SECONDS",
        about="How long a replica has to be far above its threshold, without falling and alone, "
        "before it is skipped as hopeless; 0 for never.",
    ),
]
HopelessFactor: TypeAlias = Annotated[
    float | None,
    _option(
        "--hopeless-factor",
        metavar="NUMBER",
        about="How many times its threshold is far above.",
    ),
]
Pace: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--pace/--no-pace",
        show_default=False,
        help="Whether to meter what is admitted, so that it stays near --pace-target.",
    ),
]
PaceTarget: TypeAlias = Annotated[
    float | None,
    _option(
        "--pace-target",
        metavar="SHARE",
        about="With --pace: where to keep it, as a share of its threshold.",
    ),
]
For: TypeAlias = Annotated[
    str | None,
    _option(
        "--for",
        metavar="TIME",
        about="How long: 90s, 30m, 2h, 7d, or never. Then the settings file decides again. "
        "Default: 1h for what is looser than the file, else never.",
    ),
]
Reset: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--reset", metavar="SETTING", help="Setting to restore to its default; repeatable."
    ),
]

# Parameter of the commands below → setting that it gives.
SETTING_OF = {
    "threshold": "threshold",
    "comparison": "comparison",
    "debounce": "debounce",
    "absence": "absence",
    "hold": "hold_s",
    "interval": "interval_s",
    "timeout": "timeout_s",
    "max_age": "max_age_s",
    "sql": "sql",
    "from_url": "url",
    "pointer": "pointer",
    "series": "series",
    "command": "command",
    "plugin": "plugin",
    "mode": "mode",
    "unit": "unit",
    "option": "options",
    "enabled": "enabled",
    "scope": "scope",
    "rollup": "rollup",
    "rollup_of": "rollup_of",
    "rollup_label": "rollup_labels",
    "rollup_limit": "rollup_limit",
    "quorum": "quorum",
    "ignore_hosts": "ignore_hosts",
    "ignore_above": "ignore_above",
    "missing": "missing",
    "missing_for": "missing_for_s",
    "empty": "empty",
    "grace": "grace_s",
    "hopeless_for": "hopeless_for_s",
    "hopeless_factor": "hopeless_factor",
    "pace": "pace",
    "pace_target": "pace_target",
}


def add_metric(
    context: typer.Context,
    database: DatabaseArgument,
    metric: MetricArgument,
    threshold: Threshold = None,
    comparison: Comparison = None,
    debounce: Debounce = None,
    absence: Absence = None,
    hold: Hold = None,
    interval: Interval = None,
    timeout: Timeout = None,
    max_age: MaxAge = None,
    sql: Sql = None,
    from_url: FromUrl = None,
    pointer: Pointer = None,
    series: Series = None,
    command: Command = None,
    plugin: Plugin = None,
    mode: Mode = None,
    unit: Unit = None,
    option: Option = None,
    enabled: Enabled = None,
    scope: ScopeSetting = None,
    rollup: RollupBy = None,
    rollup_of: RollupOf = None,
    rollup_label: RollupLabel = None,
    rollup_limit: RollupLimit = None,
    quorum: Quorum = None,
    ignore_hosts: IgnoreHosts = None,
    ignore_above: IgnoreAbove = None,
    missing: Missing = None,
    missing_for: MissingFor = None,
    empty: Empty = None,
    grace: Grace = None,
    hopeless_for: HopelessFor = None,
    hopeless_factor: HopelessFactor = None,
    pace: Pace = None,
    pace_target: PaceTarget = None,
    duration: For = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Add a metric, a built-in one or one of your own.

    A metric of your own takes one of --sql, --from-url, --command or --plugin, and a
    --threshold. The agent measures it at once, without a restart. With --fleet or another reach,
    agents that have the metric change these settings of it, and DATABASE may be '*' for all.
    """
    from headgate.cli.api import connect, metric_path

    settings = {**settings_given(context.params), **_end_given(duration)}
    if reach := reach_of(fleet, region, cluster, shard, host):
        wanted = _Wanted(reach, dry_run, yes, as_json)
        _change_wide("PUT", metric_path(database, metric), settings, wanted, url, token)
        return
    api = connect(url, token, timeout_s=_patience_s(timeout))
    _refuse_existing(api, database, metric)
    path = metric_path(database, metric)
    changed = api.change("PUT", path, settings, dry_run=dry_run)
    _show_change(changed, {}, database, metric, dry_run=dry_run, as_json=as_json)


def set_metric(
    context: typer.Context,
    database: DatabaseArgument,
    metric: MetricArgument,
    threshold: Threshold = None,
    comparison: Comparison = None,
    debounce: Debounce = None,
    absence: Absence = None,
    hold: Hold = None,
    interval: Interval = None,
    timeout: Timeout = None,
    max_age: MaxAge = None,
    sql: Sql = None,
    from_url: FromUrl = None,
    pointer: Pointer = None,
    series: Series = None,
    command: Command = None,
    plugin: Plugin = None,
    mode: Mode = None,
    unit: Unit = None,
    option: Option = None,
    enabled: Enabled = None,
    scope: ScopeSetting = None,
    rollup: RollupBy = None,
    rollup_of: RollupOf = None,
    rollup_label: RollupLabel = None,
    rollup_limit: RollupLimit = None,
    quorum: Quorum = None,
    ignore_hosts: IgnoreHosts = None,
    ignore_above: IgnoreAbove = None,
    missing: Missing = None,
    missing_for: MissingFor = None,
    empty: Empty = None,
    grace: Grace = None,
    hopeless_for: HopelessFor = None,
    hopeless_factor: HopelessFactor = None,
    pace: Pace = None,
    pace_target: PaceTarget = None,
    duration: For = None,
    reset: Reset = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Change some settings of a metric; the others stay.

    With --fleet or another reach it is changed wherever there is such a metric, until it is
    reverted with the same reach; DATABASE may be '*' for all of an agent's.
    """
    from headgate.cli.api import connect, metric_path

    settings = {**settings_given(context.params), **dict.fromkeys(reset or ())}
    settings |= _end_given(duration)
    if not settings:
        raise typer.BadParameter("nothing to set: give a setting, such as --threshold 10")
    if reach := reach_of(fleet, region, cluster, shard, host):
        wanted = _Wanted(reach, dry_run, yes, as_json)
        _change_wide("PATCH", metric_path(database, metric), settings, wanted, url, token)
        return
    api = connect(url, token)
    path = metric_path(database, metric)
    seen = api.get(path)
    before = _view_of(seen)
    api = connect(url, token, timeout_s=_patience_s(timeout or before.timeout_s))
    changed = api.change("PATCH", path, settings, etag=_etag(seen), dry_run=dry_run)
    _show_change(changed, before.settings, database, metric, dry_run=dry_run, as_json=as_json)


def remove_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    duration: For = None,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Remove a metric; it then refuses nobody.

    One that the settings file has comes back after an hour, or after --for.
    """
    from headgate.cli.api import connect, metric_path

    if reach := reach_of(fleet, region, cluster, shard, host):
        wanted = _Wanted(reach, dry_run, yes, as_json, _end_given(duration))
        _change_wide("DELETE", metric_path(database, metric), None, wanted, url, token)
        return
    api = connect(url, token)
    path = metric_path(database, metric)
    seen = api.get(path)
    if not yes and not dry_run:
        confirm(f"Remove {metric} from {database}? It will refuse nobody any more.")
    end = _end_given(duration)
    changed = api.change("DELETE", path, etag=_etag(seen), dry_run=dry_run, query=end)
    _show_change(changed, {}, database, metric, dry_run=dry_run, as_json=as_json)


def revert_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    fleet: FleetWide = False,
    region: InRegion = None,
    cluster: InCluster = None,
    shard: InShard = None,
    host: OnHost = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Drop runtime changes: the settings file decides again.

    A metric that the file does not have is removed; one that was removed comes back. With a reach,
    what was set with that very reach is dropped.
    """
    from headgate.cli.api import connect, metric_path

    path = metric_path(database, metric)
    if reach := reach_of(fleet, region, cluster, shard, host):
        wanted = _Wanted(reach, dry_run, yes, as_json)
        _change_wide("POST", f"{path}/revert", None, wanted, url, token)
        return
    seen = _seen(connect(url, token), path)
    before = _view_of(seen) if seen else None
    api = connect(url, token, timeout_s=_patience_s(before.timeout_s if before else None))
    etag = _etag(seen) if seen else None
    changed = api.change("POST", f"{path}/revert", etag=etag, dry_run=dry_run)
    settings = before.settings if before else {}
    _show_change(
        changed, settings, database, metric, dry_run=dry_run, as_json=as_json, done="REVERTED"
    )


# --- beyond one agent ------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """How a change is to be made."""

    reach: str
    dry_run: bool
    yes: bool
    as_json: bool
    query: Mapping[str, str] = MappingProxyType({})


def _change_wide(
    method: str,
    path: str,
    settings: Mapping[str, Any] | None,
    wanted: _Wanted,
    url: str | None,
    token: str | None,
) -> None:
    """Tried first, and asked for once it is told whom it reaches."""
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import wide_metric_page
    from headgate.wire.status import WideMetricDoc

    api = connect(url, token, timeout_s=FLEET_TIMEOUT_S)
    query = {**wanted.query, "reach": wanted.reach}
    if not wanted.dry_run and not wanted.yes:
        tried = api.change(method, path, settings, dry_run=True, query=query)
        ask_for(tried.document, wanted.reach)
    changed = api.change(method, path, settings, dry_run=wanted.dry_run, query=query)
    view, reached = read(WideMetricDoc, changed.document), reached_line(changed.document)
    show(changed, wanted.as_json, lambda _: wide_metric_page(view, reached))


# --- from options to settings ----------------------------------------------------------------


def settings_given(params: Mapping[str, Any]) -> dict[str, Any]:
    """Only what was said: an option that was left out changes nothing."""
    return {
        setting: _setting(setting, params[name])
        for name, setting in SETTING_OF.items()
        if params.get(name) not in (None, [], ())
    }


def _end_given(duration: str | None) -> dict[str, str]:
    return {} if duration is None else {"for": duration}


def _setting(name: str, value: Any) -> Any:
    if name == "command":
        import shlex

        return shlex.split(value)
    if name == "options":
        return {key: _json_or_text(text) for key, text in _pairs("--option", value).items()}
    return _pairs("--rollup-label", value) if name == "rollup_labels" else value


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{option} {pair!r} must read KEY=VALUE")
        pairs[key] = value
    return pairs


def _json_or_text(value: str) -> Any:
    import json

    try:
        return json.loads(value)
    except ValueError:
        return value


# --- steps -----------------------------------------------------------------------------------


def _patience_s(timeout_s: float | None) -> float:
    """A dry run is answered once its probe has, at the latest after the metric's timeout."""
    from headgate.cli.api import DEFAULT_TIMEOUT_S

    return max(DEFAULT_TIMEOUT_S, (timeout_s or 0.0) + AROUND_A_PROBE_S)


def _seen(api: Api, path: str) -> Answered | None:
    from headgate.errors import InvalidRequest

    try:
        return api.get(path)
    except InvalidRequest as error:
        if error.status != 404:
            raise
        return None


def _refuse_existing(api: Api, database: str, metric: str) -> None:
    from headgate.cli.api import metric_path
    from headgate.errors import HeadgateError

    if _seen(api, metric_path(database, metric)) is None:
        return
    raise HeadgateError(
        f"{database}/{metric} is there already; change it with "
        f"`headgate metrics set {database} {metric} …`"
    )


def _etag(seen: Answered) -> str:
    return seen.etag or f'"{_view_of(seen).revision}"'


def _view_of(seen: Answered) -> MetricView:
    from headgate.cli.documents import read
    from headgate.wire.status import MetricView

    return read(MetricView, seen.document)


def _show_change(
    changed: Answered,
    before: Mapping[str, Any],
    database: str,
    metric: str,
    *,
    dry_run: bool,
    as_json: bool,
    done: str = "SET",
) -> None:
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import change_page, removed_page
    from headgate.wire.status import RemovedDoc

    if "removed" in changed.document:
        removed = read(RemovedDoc, changed.document)
        show(changed, as_json, lambda _: removed_page(removed, database, metric, dry_run=dry_run))
        return
    show(
        changed,
        as_json,
        lambda canvas: change_page(
            _view_of(changed),
            before,
            canvas,
            dry_run=dry_run,
            done=done,
            replay=_replay_line(changed.document),
        ),
    )


def _replay_line(document: Mapping[str, Any]) -> str:
    """Of a dry run: what it would have done in the last hour; empty where that is not told."""
    replay = document.get("replay")
    told = replay.get("says") if isinstance(replay, Mapping) else None
    return told if isinstance(told, str) else ""
