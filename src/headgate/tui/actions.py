"""What the live screen does for its user: tried first (dry run), shown, asked for, and then done.

Through the agent's own routes, with the token or the socket at hand: the agent says that a viewer
may not change anything, before there is a question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from headgate.budgets.api import StatementExplainDoc
from headgate.check.reasons import duration
from headgate.cli.api import Answered, Api, database_path
from headgate.cli.documents import read, read_list
from headgate.cli.history import unthrottled
from headgate.cli.options import preview_line, reached_line
from headgate.cli.pages import explain_page
from headgate.cli.render import drawn, plain
from headgate.cli.replay import last_hour
from headgate.cli.rules import RULES, rule_path
from headgate.client.routes import MAX_HOPS
from headgate.errors import HeadgateError, InvalidRequest
from headgate.history.api import TimelineDoc
from headgate.present.budgets import explained_view
from headgate.present.history import timeline_view, unthrottled_view
from headgate.present.rules import changed_view
from headgate.rules.api import ExplainDoc, RuleDoc
from headgate.tui.layout import Drawn
from headgate.tui.sources import budget_path
from headgate.tui.state import Action, ExplainInput, Prepared


def hint_for(error: HeadgateError) -> str:
    """A viewer learns that the role is missing."""
    told = plain(" ".join(str(error).split()))
    status = error.status if isinstance(error, InvalidRequest) else None
    if status in (401, 403):
        return f"you may look, not change: {told}"
    return told


# --- trying ------------------------------------------------------------------------------------


def prepare(api: Api, action: Action) -> Prepared:
    return _PREPARE[action.kind](api, action)


def _lift(api: Api, action: Action) -> Prepared:
    seen = api.get(rule_path(action.target))
    tried = api.change("DELETE", rule_path(action.target), etag=seen.etag, dry_run=True)
    rules = read_list(RuleDoc, tried.document, "rules")
    question = f"Lift {_names(rules)}{_reach(tried.document)}?"
    undo = f"undo: {_as_command(read(RuleDoc, seen.document))}"
    return Prepared(action, question, _page(rules, "LIFTED", tried), seen.etag, undo)


def _extend(api: Api, action: Action) -> Prepared:
    seen = api.get(rule_path(action.target))
    path, body = rule_path(action.target), {"for": action.for_text}
    tried = api.change("PATCH", path, body, etag=seen.etag, dry_run=True)
    before, after = read(RuleDoc, seen.document), read(RuleDoc, tried.document)
    left = f"{duration(before.left_s)} to {duration(after.left_s)}"
    question = f"Extend {plain(after.id)} on {plain(after.target)}, from {left} left"
    undo = f"undo: headgate rule extend {plain(after.id)} --expires-at {plain(before.expires_at)}"
    shown = _page([after], "EXTENDED", tried)
    return Prepared(action, f"{question}{_reach(tried.document)}?", shown, seen.etag, undo)


def _hold(api: Api, action: Action) -> Prepared:
    body = _hold_body(action)
    tried = api.change("POST", RULES, body, dry_run=True)
    rule = read(RuleDoc, tried.document)
    where = f" on {plain(action.database)}" if action.database else ""
    question = f"Reject every check of {plain(rule.target)}{where} for {plain(action.for_text)}?"
    return Prepared(action, question, _page([rule], "SET", tried, last_hour(api, body)))


def _hold_body(action: Action) -> dict[str, Any]:
    given = {"kind": "hold", "target": action.target, "for": action.for_text}
    given |= {"reason": action.reason, "database": action.database or ""}
    return {key: value for key, value in given.items() if value}


def _wake(_api: Api, action: Action) -> Prepared:
    names = action.target.replace(",", ", ")
    told = f"{plain(names)} will be measured as after a check, for a while"
    return Prepared(action, f"Wake {plain(names)}?", lambda _: Text(told))


_PREPARE = {"lift": _lift, "extend": _extend, "hold": _hold, "wake": _wake}


def _page(rules: Sequence[RuleDoc], done: str, tried: Answered, past: str = "") -> Drawn:
    reached = reached_line(tried.document)
    view = changed_view(rules, done, dry_run=True, reached=reached, past=past)
    return lambda canvas: drawn(view, canvas)


def _names(rules: Sequence[RuleDoc]) -> str:
    return " and ".join(f"{plain(one.id)} ({plain(one.says)})" for one in rules)


def _reach(document: Mapping[str, Any]) -> str:
    """Of a rule for the fleet: which agents it reaches."""
    return f", {preview_line(document)}" if document.get("reached") else ""


def _as_command(rule: RuleDoc) -> str:
    """What would set such a rule again; what it cannot say, the audit has."""
    target, left = plain(rule.target), f"--for {max(1, round(rule.left_s))}s"
    if rule.kind == "hold":
        where = f"--database {plain(rule.database or 'all')}"
        return f"headgate rule hold {target} --reason {plain(rule.reason)!r} {left} {where}"
    return f"headgate audit has what it was; {left} were left"


# --- doing -------------------------------------------------------------------------------------


def carry_out(api: Api, prepared: Prepared) -> str:
    """What was done, in a line, and how to undo it."""
    return _DO[prepared.action.kind](api, prepared)


def _do_lift(api: Api, prepared: Prepared) -> str:
    path = rule_path(prepared.action.target)
    done = api.change("DELETE", path, etag=prepared.etag)
    lifted = ", ".join(plain(one.id) for one in read_list(RuleDoc, done.document, "rules"))
    return f"LIFTED {lifted}; {prepared.undo}"


def _do_extend(api: Api, prepared: Prepared) -> str:
    action = prepared.action
    body = {"for": action.for_text}
    done = api.change("PATCH", rule_path(action.target), body, etag=prepared.etag)
    rule = read(RuleDoc, done.document)
    left = duration(rule.left_s)
    return f"EXTENDED {plain(rule.id)}: {left} left; {prepared.undo}"


def _do_hold(api: Api, prepared: Prepared) -> str:
    rule = read(RuleDoc, api.change("POST", RULES, _hold_body(prepared.action)).document)
    told = f"SET {plain(rule.id)}: {plain(rule.target)} is held for {duration(rule.left_s)}"
    return f"{told}; undo: l on it in 4, or headgate rule lift {plain(rule.id)}"


def _do_wake(api: Api, prepared: Prepared) -> str:
    names = prepared.action.target.split(",")
    for name in names:
        api.change("POST", database_path(name, "wake"), {})
    return f"WOKEN {plain(', '.join(names))}: it hibernates again without checks"


_DO = {"lift": _do_lift, "extend": _do_extend, "hold": _do_hold, "wake": _do_wake}


# --- looking -----------------------------------------------------------------------------------


def hour_of(api: Api, app: str) -> Drawn:
    """A client's, or a level's, own timeline."""
    told = api.get("/v1/history/timeline", app=app, since="1h", step="2m").document
    timeline, without = read(TimelineDoc, told), unthrottled(api, app, 60)
    view = [*timeline_view(timeline), *unthrottled_view(without)]
    return lambda canvas: drawn(view, canvas)


def explained(api: Api, question: ExplainInput) -> Drawn:
    if question.is_statement:
        path = budget_path(question.database, "explain")
        told = api.change("POST", path, {"sql": question.text}).document
        found = read(StatementExplainDoc, told)
        return lambda canvas: drawn(explained_view(found), canvas)
    asked, sent = _following(api, question)
    answer = read(ExplainDoc, asked.document)
    return lambda canvas: Group(
        *(Text(line, style="dim") for line in sent),
        explain_page(answer, canvas),
    )


def _following(api: Api, question: ExplainInput) -> tuple[Answered, list[str]]:
    """From the agent that this one names, as the SDK does it; and which that was."""
    sent: list[str] = []
    database = question.database
    asked = api.ask("/v1/explain", app=question.text, database=database)
    for _ in range(MAX_HOPS):
        onward = api.onward(asked.document.get("ask"))
        if asked.document.get("verdict") != "WRONG_AGENT" or onward is None:
            break
        sent.append(f"{plain(api.url)} sends us to {plain(onward.url)}")
        database = str(asked.document.get("ask_database") or database)
        api, asked = onward, onward.ask("/v1/explain", app=question.text, database=database)
    return asked, sent
