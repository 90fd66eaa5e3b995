"""Commands on rules: rules, rule show, ratio, hold, exempt, metrics, thresholds, extend, change,
lift, rest, wake, and favor. Their flags are the settings that rules/settings.py declares.

A change of a rule is built on the revision it saw (If-Match), as with metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from headgate.cli import completing
from headgate.cli.options import (
    EVERY_DATABASE,
    FLEET_TIMEOUT_S,
    AgentOptions,
    ChangeOptions,
    DatabaseOrAll,
    DryRun,
    ReachOptions,
    copies_line,
    flags,
    reached_line,
    said_by,
)
from headgate.rules.matching import Kind
from headgate.rules.settings import (
    FAVOR_SETTINGS,
    FIXED,
    PAIRED,
    RULE_SETTINGS,
    needed_by,
    settings_of,
)

if TYPE_CHECKING:
    from headgate.base.declared import Setting
    from headgate.cli.api import Answered, Api

RULES = "/v1/rules"

RuleId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", autocompletion=completing.rules)]
Reason: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", show_default=False, help="Why.")
]
All: TypeAlias = Annotated[
    bool, typer.Option("--all", help="Also rules that ended within the last day.")
]


# --- looking ---------------------------------------------------------------------------------


def rules(agent: AgentOptions, ended: All = False) -> None:
    """List the rules: target, effect, time left, author and reason."""
    answered = agent.connect().get(RULES, all="true" if ended else None)
    agent.show(answered, "rules.rules_view")


def show_rule(rule: RuleId, agent: AgentOptions) -> None:
    """Show one rule in full, and the clients it applies to."""
    agent.show(agent.connect().get(rule_path(rule)), "rules.rule_view")


# --- setting ---------------------------------------------------------------------------------


class RatioCommand(TyperCommand):
    """A share below 0 looks like an option: say what is wrong with it, not that there is none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before = ["", *args]
        for last, arg in zip(before, args, strict=False):
            if _NEGATIVE.fullmatch(arg) and not last.startswith("-"):
                message = f"ratio is {arg}, must be 0 up to below 1: the share of checks to reject"
                raise typer.BadParameter(message, ctx=ctx)
        return super().parse_args(ctx, args)


_NEGATIVE = re.compile(r"-[0-9.][0-9.eE+-]*")


def _setting(kind: Kind, about: str) -> Callable[..., None]:
    """The command that sets a rule of that kind. What the kind is named after is an argument."""
    rows = [row for row in settings_of(kind) if row.name != "database"]
    named = frozenset({"target", kind.value}) & {row.name for row in rows}

    def command(
        *,
        given: Any,
        database: DatabaseOrAll = "main",
        reach: ReachOptions,
        change: ChangeOptions,
        agent: AgentOptions,
    ) -> None:
        from headgate.cli.history import last_hour

        body = {"kind": kind.value, **said_by(given, rows), **_on(database)}
        api = _connected(reach, agent)
        changed = _posted(api, RULES, body, reach, change)
        is_asked = changed.document.get("clients_total") is not None
        tried = change.dry_run and not agent.as_json and is_asked
        past = last_hour(api, body) if tried else ""
        _show(changed, "SET", agent, dry_run=change.dry_run, past=past)

    command.__doc__ = about
    command.__annotations__["given"] = flags(rows, needed=needed_by(kind), arguments=named)
    return command


ratio = _setting(
    Kind.RATIO,
    """Reject a share of a client's checks, at random.

    A ratio never admits a check: what the dice do not reject, the metrics decide.
    """,
)
hold = _setting(Kind.HOLD, """Reject every check of a client, for a while and for a reason.""")
exempt = _setting(
    Kind.EXEMPT,
    """Admit a client although metrics breach: all of them, or the named ones.

    Other clients pay for it. So it is suspended above its ceiling, and when it has starved others.
    """,
)
metrics = _setting(
    Kind.METRICS, """Decide a client's checks by these metrics, where a check names none."""
)
thresholds = _setting(
    Kind.THRESHOLDS, """Decide a client's checks by stricter thresholds than others have."""
)

_FAVOR = [row for name, row in FAVOR_SETTINGS.items() if name != "database"]


def favor(
    *,
    given: Any,
    database: DatabaseOrAll = "main",
    reach: ReachOptions,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Prioritize one client by throttling all the others.

    Two rules in one command, ended by one `headgate rule lift`. New clients count as others.
    """
    body = said_by(given, _FAVOR) | _on(database)
    changed = _posted(_connected(reach, agent), f"{RULES}/favor", body, reach, change)
    _show(changed, "SET", agent, dry_run=change.dry_run)


favor.__annotations__["given"] = flags(_FAVOR, arguments=["target"])


def _on(database: str) -> dict[str, str]:
    return {} if database == EVERY_DATABASE else {"database": database}


# --- changing --------------------------------------------------------------------------------


def _changing(rows: Sequence[Setting], example: str, about: str) -> Callable[..., None]:
    def command(rule: RuleId, given: Any, change: ChangeOptions, agent: AgentOptions) -> None:
        body = said_by(given, rows)
        if not body:
            raise typer.BadParameter(f"nothing to change: give a setting, such as {example}")
        changed = _altered("PATCH", rule, body, change, agent)
        _show(changed, "CHANGED", agent, dry_run=change.dry_run)

    command.__doc__ = about
    command.__annotations__["given"] = flags(rows)
    return command


extend = _changing(
    [RULE_SETTINGS[name] for name in PAIRED],
    "--for 2h",
    """Change when a rule ends, counted from now; nothing else changes.""",
)
change = _changing(
    [row for name, row in RULE_SETTINGS.items() if name not in (*FIXED, *PAIRED)],
    "--ratio 50%",
    """Change settings of a rule, such as its ratio; its end stays.""",
)


def lift(rule: RuleId, change: ChangeOptions, agent: AgentOptions) -> None:
    """End a rule now, and the one that was set together with it."""
    changed = _altered("DELETE", rule, None, change, agent)
    _show(changed, "LIFTED", agent, dry_run=change.dry_run)


def suspend(rule: RuleId, reason: Reason, agent: AgentOptions, dry_run: DryRun = False) -> None:
    """Suspend a rule of the fleet or the shard at this agent.

    As if it were not there: for when the fleet's store cannot be reached, or no agent leads the
    shard, so that the rule cannot be lifted. `headgate rule resume` ends that, and so does setting
    the rule again.
    """
    path = f"{rule_path(rule)}/suspension"
    changed = agent.connect().change("PUT", path, {"reason": reason}, dry_run=dry_run)
    _show(changed, "SUSPENDED HERE", agent, dry_run=dry_run)


def resume(rule: RuleId, agent: AgentOptions, dry_run: DryRun = False) -> None:
    """End the suspension of a rule at this agent."""
    changed = agent.connect().change("DELETE", f"{rule_path(rule)}/suspension", dry_run=dry_run)
    _show(changed, "IN FORCE AGAIN", agent, dry_run=dry_run)


# --- steps -----------------------------------------------------------------------------------


def rule_path(rule: str) -> str:
    return f"{RULES}/{quote(rule, safe='')}"


def _connected(reach: ReachOptions, agent: AgentOptions) -> Api:
    return agent.connect(timeout_s=None if reach.said is None else FLEET_TIMEOUT_S)


def _posted(
    api: Api, path: str, given: Mapping[str, Any], reach: ReachOptions, change: ChangeOptions
) -> Answered:
    body = given if reach.said is None else {**given, "reach": reach.said}
    ask = None if change.yes else reach.said
    return api.change("POST", path, body, dry_run=change.dry_run, ask=ask)


def _altered(
    method: str,
    rule: str,
    given: Mapping[str, Any] | None,
    change: ChangeOptions,
    agent: AgentOptions,
) -> Answered:
    """Built on what was seen."""
    api, path = agent.connect(timeout_s=FLEET_TIMEOUT_S), rule_path(rule)
    seen = api.get(path)
    of = seen.document.get("reach")
    ask = f"{rule}, {of}" if isinstance(of, str) and not change.yes else None
    return api.change(method, path, given, etag=seen.etag, dry_run=change.dry_run, ask=ask)


def _show(
    changed: Answered, done: str, agent: AgentOptions, *, dry_run: bool, past: str = ""
) -> None:
    view = "rules.changed_view" if "rules" in changed.document else "rules.rule_changed_view"
    told = reached_line(changed.document) or copies_line(changed.document)
    agent.show(changed, view, done=done, dry_run=dry_run, reached=told, past=past)
