"""Commands that change metrics at run time: metrics add, set, remove, revert.

A change is built on the revision it saw (If-Match): what another operator did in between is
never overwritten, the agent answers 412 and the command says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from headgate.cli.options import (
    FLEET_TIMEOUT_S,
    AgentOptions,
    ChangeOptions,
    DatabaseArgument,
    MetricArgument,
    ReachOptions,
    completed_by,
    confirm,
    lasting_or_never,
    lasts_option,
    reached_line,
    read_words,
    table_at,
)
from headgate.cli.table import METRIC_TABLE

if TYPE_CHECKING:
    from headgate.check.api import MetricView
    from headgate.cli.api import Answered, Api


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
    lasts_option(
        "90s, 30m, 2h, 7d, or never. Then the settings file decides again. Default: 1h for what "
        "is looser than the file, else never.",
        lasting_or_never,
    ),
]


def add_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
    words: Words = None,
    duration: For = None,
) -> None:
    """Add a metric, a built-in one or one of your own.

    A metric of your own takes one of sql, url, command or plugin, and a threshold. For example:
    headgate metrics add main queue_depth sql='select count(id) from jobs' threshold=1000.
    The agent measures it at once, without a restart. With --fleet or another reach, agents that
    have the metric change these settings of it, and DATABASE may be '*' for all.
    """
    settings = {**settings_given(words), **_end_given(duration)}
    wanted = _Wanted(database, metric, change, agent)
    if reach.said:
        _change_wide("PUT", wanted.path, settings, wanted, reach.said)
        return
    api = agent.connect(timeout_s=_patience_s(settings.get("timeout_s")))
    _reject_existing(api, database, metric)
    changed = api.change("PUT", wanted.path, settings, dry_run=change.dry_run)
    _show_change(changed, {}, wanted)


def set_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
    words: Words = None,
    duration: For = None,
) -> None:
    """Change some settings of a metric; the others stay.

    For example: headgate metrics set main lag threshold=10s interval_s=500ms --for 2h.
    With --fleet or another reach it is changed wherever there is such a metric, until it is
    reverted with the same reach. DATABASE may be '*' for all of an agent's.
    """
    settings = {**settings_given(words), **_end_given(duration)}
    if not settings:
        raise typer.BadParameter("nothing to set: give a setting, such as threshold=10s")
    wanted = _Wanted(database, metric, change, agent)
    if reach.said:
        _change_wide("PATCH", wanted.path, settings, wanted, reach.said)
        return
    seen = agent.connect().get(wanted.path)
    before = _view_of(seen)
    api = agent.connect(timeout_s=_patience_s(settings.get("timeout_s") or before.timeout_s))
    changed = api.change("PATCH", wanted.path, settings, etag=_etag(seen), dry_run=change.dry_run)
    _show_change(changed, before.settings, wanted)


def remove_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
    duration: For = None,
) -> None:
    """Remove a metric; it then rejects no check.

    A metric of the settings file comes back after an hour, or after --for.
    """
    wanted, end = _Wanted(database, metric, change, agent), _end_given(duration)
    if reach.said:
        _change_wide("DELETE", wanted.path, None, wanted, reach.said, end)
        return
    api = agent.connect()
    seen = api.get(wanted.path)
    if not change.yes and not change.dry_run:
        confirm(f"Remove {metric} from {database}? It will no longer reject any check.")
    etag, dry_run = _etag(seen), change.dry_run
    changed = api.change("DELETE", wanted.path, etag=etag, dry_run=dry_run, query=end)
    _show_change(changed, {}, wanted)


def revert_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Drop runtime changes: the settings file decides again.

    A metric that the file does not have is removed; one that was removed comes back. With a reach,
    it drops what was set with the same reach.
    """
    wanted = _Wanted(database, metric, change, agent)
    path = f"{wanted.path}/revert"
    if reach.said:
        _change_wide("POST", path, None, wanted, reach.said)
        return
    seen = _seen(agent.connect(), wanted.path)
    before = _view_of(seen) if seen else None
    api = agent.connect(timeout_s=_patience_s(before.timeout_s if before else None))
    etag = _etag(seen) if seen else None
    changed = api.change("POST", path, etag=etag, dry_run=change.dry_run)
    _show_change(changed, before.settings if before else {}, wanted, done="REVERTED")


# --- beyond one agent ------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """Which metric, and how its change is to be made."""

    database: str
    metric: str
    change: ChangeOptions
    agent: AgentOptions

    @property
    def path(self) -> str:
        from headgate.cli.api import metric_path

        return metric_path(self.database, self.metric)


def _change_wide(
    method: str,
    path: str,
    settings: Mapping[str, Any] | None,
    wanted: _Wanted,
    reach: str,
    end: Mapping[str, str] = MappingProxyType({}),
) -> None:
    api = wanted.agent.connect(timeout_s=FLEET_TIMEOUT_S)
    query, ask = {**end, "reach": reach}, None if wanted.change.yes else reach
    dry_run = wanted.change.dry_run
    changed = api.change(method, path, settings, query=query, dry_run=dry_run, ask=ask)
    if "reach" not in changed.document:  # This agent alone: a change like any of its own.
        _show_change(changed, {}, wanted)
        return
    wanted.agent.show(changed, "metrics.wide_view", reached=reached_line(changed.document))


# --- from words to settings ------------------------------------------------------------------


def settings_given(words: Sequence[str] | None) -> dict[str, Any]:
    """Only what was said: a setting that was left out stays as it is."""
    return read_words(words or (), table_at(METRIC_TABLE), "threshold=10s")


def _end_given(duration: str | None) -> dict[str, str]:
    return {} if duration is None else {"for": duration}


# --- steps -----------------------------------------------------------------------------------


def _patience_s(timeout: float | str | None) -> float:
    """A dry run is answered once its probe has, at the latest after the metric's timeout."""
    from headgate.base.units import parse_seconds
    from headgate.cli.api import DEFAULT_TIMEOUT_S

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


def _reject_existing(api: Api, database: str, metric: str) -> None:
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
    from headgate.check.api import MetricView
    from headgate.cli.documents import read

    return read(MetricView, seen.document)


def _show_change(
    changed: Answered, before: Mapping[str, Any], wanted: _Wanted, done: str = "SET"
) -> None:
    show, how = wanted.agent.show, {"dry_run": wanted.change.dry_run}
    if "removed" in changed.document:
        show(changed, "metrics.removed_view", **how)
    else:
        show(changed, "metrics.changed_view", before=before, done=done, **how)
