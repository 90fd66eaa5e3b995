"""Commands that change metrics at run time: metrics add, set, remove, revert.

A change is built on the revision it saw (If-Match): what somebody else did in between is
never overwritten, the agent answers 412 and the command says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from headgate.cli.confirm import Yes, confirm
from headgate.cli.given import completed_by, lasting_or_never, read_words, table_at
from headgate.cli.options import AsJson, DatabaseArgument, DryRun, MetricArgument, Token, Url
from headgate.cli.reaching import (
    FLEET_TIMEOUT_S,
    FleetWide,
    InCluster,
    InRegion,
    InShard,
    OnHost,
    confirmed,
    reach_of,
    reached_line,
)
from headgate.cli.table import METRIC_TABLE

if TYPE_CHECKING:
    from headgate.cli.api import Answered, Api
    from headgate.wire.status import MetricView


# A dry run waits for one probe, and this for the way there and back.
AROUND_A_PROBE_S = 2.0


Words: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTING=VALUE…",
        show_default=False,
        autocompletion=completed_by(METRIC_TABLE),
        help="Such as threshold=50ms debounce='3 of 5' options.method=heartbeat; VALUE `unset` "
        "restores the default.",
    ),
]
For: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TIME",
        parser=lasting_or_never,
        show_default=False,
        help="How long: 90s, 30m, 2h, 7d, or never. Then the settings file decides again. "
        "Default: 1h for what is looser than the file, else never.",
    ),
]


def add_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    words: Words = None,
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

    A metric of your own takes one of sql, url, command or plugin, and a threshold:
    headgate metrics add main queue_depth sql='select count(*) from jobs' threshold=1000
    The agent measures it at once, without a restart. With --fleet or another reach, agents that
    have the metric change these settings of it, and DATABASE may be '*' for all.
    """
    from headgate.cli.api import connect, metric_path

    settings = {**settings_given(words), **_end_given(duration)}
    if reach := reach_of(fleet, region, cluster, shard, host):
        wanted = _Wanted(database, metric, reach, dry_run, yes, as_json)
        _change_wide("PUT", metric_path(database, metric), settings, wanted, url, token)
        return
    api = connect(url, token, timeout_s=_patience_s(settings.get("timeout_s")))
    _refuse_existing(api, database, metric)
    path = metric_path(database, metric)
    changed = api.change("PUT", path, settings, dry_run=dry_run)
    _show_change(changed, {}, database, metric, dry_run=dry_run, as_json=as_json)


def set_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    words: Words = None,
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
    """Change some settings of a metric; the others stay.

    For example: headgate metrics set main lag threshold=10s interval_s=500ms --for 2h
    With --fleet or another reach it is changed wherever there is such a metric, until it is
    reverted with the same reach; DATABASE may be '*' for all of an agent's.
    """
    from headgate.cli.api import connect, metric_path

    settings = {**settings_given(words), **_end_given(duration)}
    if not settings:
        raise typer.BadParameter("nothing to set: give a setting, such as threshold=10s")
    if reach := reach_of(fleet, region, cluster, shard, host):
        wanted = _Wanted(database, metric, reach, dry_run, yes, as_json)
        _change_wide("PATCH", metric_path(database, metric), settings, wanted, url, token)
        return
    api = connect(url, token)
    path = metric_path(database, metric)
    seen = api.get(path)
    before = _view_of(seen)
    api = connect(url, token, timeout_s=_patience_s(settings.get("timeout_s") or before.timeout_s))
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
        wanted = _Wanted(database, metric, reach, dry_run, yes, as_json, _end_given(duration))
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
        wanted = _Wanted(database, metric, reach, dry_run, yes, as_json)
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
    """Which metric, and how its change is to be made."""

    database: str
    metric: str
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
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import wide_metric_page
    from headgate.wire.status import WideMetricDoc

    api = connect(url, token, timeout_s=FLEET_TIMEOUT_S)
    query = {**wanted.query, "reach": wanted.reach}
    change = partial(api.change, method, path, settings, query=query)
    changed = confirmed(change, wanted.reach, dry_run=wanted.dry_run, yes=wanted.yes)
    if "reach" not in changed.document:  # This agent alone: a change like any of its own.
        _show_change(
            changed, {}, wanted.database, wanted.metric,
            dry_run=wanted.dry_run, as_json=wanted.as_json,
        )  # fmt: skip
        return
    view, reached = read(WideMetricDoc, changed.document), reached_line(changed.document)
    show(changed, wanted.as_json, lambda _: wide_metric_page(view, reached))


# --- from words to settings ------------------------------------------------------------------


def settings_given(words: Sequence[str] | None) -> dict[str, Any]:
    """Only what was said: a setting that was left out stays as it is."""
    return read_words(words or (), table_at(METRIC_TABLE), "threshold=10s")


def _end_given(duration: str | None) -> dict[str, str]:
    return {} if duration is None else {"for": duration}


# --- steps -----------------------------------------------------------------------------------


def _patience_s(timeout: float | str | None) -> float:
    """A dry run is answered once its probe has, at the latest after the metric's timeout."""
    from headgate.cli.api import DEFAULT_TIMEOUT_S
    from headgate.core.units import parse_seconds

    timeout_s = parse_seconds(timeout) if isinstance(timeout, str) else timeout or 0.0
    return max(DEFAULT_TIMEOUT_S, timeout_s + AROUND_A_PROBE_S)


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
