"""The views of the live screen: each with its documents, what draws it, and its own keys.

What draws a view is loaded when it is opened: a screen is there at once, whatever it could show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from msgspec.structs import replace

from headgate.tui.layout import RowCursor, ScreenPage, View, ViewRequest
from headgate.tui.sources import Scene
from headgate.tui.state import (
    DEFAULT_FOR,
    Action,
    Explain,
    ExplainInput,
    Hour,
    KeyContext,
    Next,
    Prepare,
    Prompt,
    Redraw,
    ScreenState,
    type_question,
)


def _drawn_by(home: str) -> Callable[[Scene, ViewRequest], ScreenPage]:
    module, _, name = home.partition(":")

    def draw(scene: Scene, ask: ViewRequest) -> ScreenPage:
        page: ScreenPage = getattr(import_module(f"headgate.tui.{module}"), name)(scene, ask)
        return page

    return draw


# --- clients -----------------------------------------------------------------------------------


def _hour(state: ScreenState, seen: KeyContext) -> Next:
    app = seen.chosen.partition(" ")[0]
    if not app:
        return state, None
    return replace(state, busy=f"asking for the last hour of {app}"), Hour(app)


def _explain_chosen(state: ScreenState, seen: KeyContext) -> Next:
    """Of the chosen client: why is it answered so?"""
    app, _, database = seen.chosen.partition(" ")
    if not app:
        return type_question(state, seen)
    question = ExplainInput(app, database or (seen.databases[0] if seen.databases else ""))
    return replace(state, view="explain", asked=question, busy="asking"), Explain(question)


def _hold(state: ScreenState, seen: KeyContext) -> Next:
    app, _, database = seen.chosen.partition(" ")
    if not app:
        return state, None
    action = Action("hold", app, database=database or None)
    where = f" on {database}" if database else ""
    label = f"hold {app}{where} for: "
    return replace(state, prompt=Prompt("for", label, DEFAULT_FOR, action)), None


def _order(state: ScreenState, _: KeyContext) -> Next:
    from headgate.present.clients import SORTS

    names = list(SORTS)
    return replace(state, order=names[(names.index(state.order) + 1) % len(names)]), None


def _tree(state: ScreenState, _: KeyContext) -> Next:
    return replace(state, as_tree=not state.as_tree), None


# --- rules, the past, explain ------------------------------------------------------------------


def _lift(state: ScreenState, seen: KeyContext) -> Next:
    if not seen.chosen:
        return state, None
    return replace(state, busy="trying"), Prepare(Action("lift", seen.chosen))


def _extend(state: ScreenState, seen: KeyContext) -> Next:
    if not seen.chosen:
        return state, None
    action = Action("extend", seen.chosen)
    label = f"extend {action.target} for, from now: "
    return replace(state, prompt=Prompt("for", label, DEFAULT_FOR, action)), None


def _other_list(state: ScreenState, _: KeyContext) -> Next:
    return replace(state, tab=1 - state.tab, cursors={**state.cursors, "past": RowCursor()}), None


def _ask_again(state: ScreenState, _: KeyContext) -> Next:
    if state.asked is None:
        return state, Redraw()
    return replace(state, busy="asking"), Explain(state.asked)


VIEWS: Mapping[str, View] = {
    one.name: one
    for one in (
        View(
            "1", "overview", "what to do, what is unhealthy, who is throttled, by what, since when",
            _drawn_by("page:draw"), extras=("rules",), hints=("w wake",),
        ),
        View(
            "2", "shard", "the replica set as a tree: lag, roles, causes; each metric's curve",
            _drawn_by("page:draw_shards"), hints=("w wake",),
        ),
        View(
            "3", "clients", "by levels: rates, throttled since when and by what, the last hour",
            _drawn_by("clients:draw"), extras=("starvation",),
            hints=("Enter hour", "x why", "h hold", "/ filter", "o order", "t tree"),
            acts={
                "enter": _hour, "x": _explain_chosen, "h": _hold, "o": _order, "t": _tree,
            },
        ),
        View(
            "4", "rules", "time left, who set them, reason, which clients they match",
            _drawn_by("lists:draw_rules"), ("rules",),
            hints=("l lift", "e extend", "/ filter"), acts={"l": _lift, "e": _extend},
        ),
        View(
            "5", "budgets", "fill, running, blocked, and what statements cost",
            _drawn_by("lists:draw_budgets"), ("budgets",), hints=("/ filter",),
        ),
        View(
            "6", "past", "which checks were rejected lately, and who changed what",
            _drawn_by("lists:draw_past"), ("rejections", "audit"),
            hints=("Tab other list", "/ filter"), acts={"tab": _other_list},
        ),
        View(
            "7", "explain", "how a client, or a statement, would be answered now, and why",
            _drawn_by("lists:draw_explain"), hints=("Enter explain", "r again"),
            acts={"enter": type_question, "r": _ask_again},
        ),
        View(
            "8", "fleet", "every replica set, unhealthy ones first; rules and who has them",
            _drawn_by("lists:draw_fleet"), ("fleet",), hints=("/ filter",),
        ),
    )
}  # fmt: skip
PROXY_VIEWS: Mapping[str, View] = {
    one.name: one
    for one in (
        View(
            "1", "proxy", "sessions, clients, budgets, servers, what is wrong",
            _drawn_by("lists:draw_proxy"),
        ),
        View(
            "2", "sessions", "which client, since when, and what it does",
            _drawn_by("lists:draw_sessions"), ("sessions",), hints=("/ filter",),
        ),
    )
}  # fmt: skip
"""Of `headgate proxy status --watch`."""
