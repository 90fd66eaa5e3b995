"""Changes of budgets from the page: each is tried, shown with what it would do, and then confirmed.

control ──► tried (dry run), replay_of ──► Confirmation ──(confirmed)──► made ──► done_path
form ──► BudgetForm (budgets_form.py) ──► the same

What was shown is what is made: the confirmation carries the very document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from headgate.budgets.api import BudgetDoc, PolicyChangeDoc, PolicyDoc, StateDoc
from headgate.budgets.limits import BUDGET_SETTINGS, KEY_MEANINGS
from headgate.budgets.replay_api import BudgetReplayDoc, BudgetReplayRowDoc
from headgate.errors import InvalidRequest
from headgate.page.api import ApiRejected, PageApi, in_path
from headgate.page.budgets_form import (
    FIRST,
    KEYS,
    LABELS,
    MORE,
    UNITS,
    BudgetForm,
    BudgetFormFaults,
    BudgetRuleForm,
    Used,
    changes_of,
    comment_of,
    draft_from,
    draft_of,
    faults_of,
    free_name,
    match_of,
    name_for,
    proposed,
    settings_of,
    stepped,
    used_by,
)
from headgate.page.changes import copies_query
from headgate.page.shell import Visit, moved, page, part
from headgate.present.budgets import advice_told, seconds
from headgate.present.words import age

MAX_CLIENTS = 5


@dataclass(frozen=True, slots=True)
class Replay:
    """What it would have done, or why nobody knows."""

    fault: str = ""
    statements: float = 0.0
    blocked: float = 0.0
    warned: float = 0.0
    delayed: float = 0.0
    error: float = 0.0
    cpu_before_s: float = 0.0
    span_s: float = 0.0
    clients: Sequence[BudgetReplayRowDoc] = ()
    notes: Sequence[str] = ()

    @property
    def span(self) -> str:
        return age(self.span_s)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What is shown before something is changed."""

    title: str
    action: str
    button: str
    words: Sequence[str] = ()
    change: PolicyChangeDoc | None = None
    replay: Replay | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    is_danger: bool = False
    back: str = ""


# --- calls of the API ---------------------------------------------------------------------------


def policy_path(database: str) -> str:
    return f"/v1/budgets/{in_path(database)}"


async def policy_of(visit: Visit, database: str, most: int, find: str = "") -> PolicyDoc:
    """With the most urgent of its budgets: there may be ten thousand."""
    return await visit.api.get(policy_path(database), PolicyDoc, {"most": most, "find": find})


def budget_path(database: str, name: str) -> str:
    return f"{policy_path(database)}/{in_path(name)}"


async def replay_of(api: PageApi, database: str, budget: Mapping[str, Any]) -> Replay:
    """Of the last hour, for that budget alone."""
    body = {"budget": dict(budget), "since_s": 3600}
    try:
        doc = await api.send("POST", f"{policy_path(database)}/replay", BudgetReplayDoc, body)
    except ApiRejected as rejected:
        return Replay(fault="; ".join((rejected.detail, *rejected.faults)))
    name = str(budget["name"])
    mine = [row for row in doc.clients if row.budget == name]
    return Replay(
        statements=sum(row.sums.statements for row in mine),
        blocked=sum(row.sums.blocked for row in mine),
        warned=sum(row.sums.warned for row in mine),
        delayed=sum(row.sums.delayed for row in mine),
        error=doc.total.error,
        cpu_before_s=sum(row.sums.cpu_before_s for row in mine),
        span_s=_span_s(doc),
        clients=mine[:MAX_CLIENTS],
        notes=doc.notes,
    )


def _span_s(doc: BudgetReplayDoc) -> float:
    begins, ends = datetime.fromisoformat(doc.since), datetime.fromisoformat(doc.until)
    return (ends - begins).total_seconds()


def done_path(database: str, name: str, change: PolicyChangeDoc) -> str:
    """Where to go after a change: its result is shown there."""
    where = f"/budgets/{in_path(database)}"
    where += f"/{in_path(name)}" if name and change.budget is not None else ""
    return f"{where}?{urlencode({'done': change.revision, **copies_query(change.copies)})}"


# --- steps --------------------------------------------------------------------------------------


def place(visit: Visit) -> tuple[str, str]:
    return visit.path["database"], visit.path["name"]


def of_fleet(budget: BudgetDoc) -> list[str]:
    if budget.reach is None:
        return []
    if budget.origin == "shard":
        return [f"It is set for {budget.reach}: this changes it at every agent of the shard."]
    return [
        f"The fleet has set it, for {budget.reach}: this changes it at this agent alone. "
        "`headgate budget set all` with that reach changes it for all of them."
    ]


def is_confirmed(visit: Visit) -> bool:
    return visit.form.get("step") == "make"


async def tried(
    visit: Visit, method: str, path: str, body: Mapping[str, Any] | None = None
) -> PolicyChangeDoc:
    return await visit.api.send(method, path, PolicyChangeDoc, body, query={"dry_run": True})


async def made(
    visit: Visit,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    name: str = "",
) -> Response:
    raw = visit.form.get("revision", "")
    revision = int(raw) if raw.isdecimal() and len(raw) <= 18 else None
    new = method == "PUT"  # Built on there being none.
    change = await visit.api.send(method, path, PolicyChangeDoc, body, revision=revision, new=new)
    return moved(visit, done_path(change.database, name, change))


def asked(visit: Visit, confirm: Confirmation) -> Response:
    if visit.by_script:
        return part(
            visit, "budgets_confirm.html", confirm=confirm, in_dialog=True, advised=advice_told
        )
    return page(
        visit, "budgets_confirm_page.html", confirm=confirm, in_dialog=False, advised=advice_told
    )


# --- switches ------------------------------------------------------------------------------------

MODES = ("off", "warn", "enforce")


class BudgetChanges:
    """Handlers."""

    change_routes = (
        ("POST", "/budgets/{database}/{name}/mode", "mode"),
        ("POST", "/budgets/{database}/{name}/forgive", "forgive"),
        ("POST", "/budgets/{database}/{name}/remove", "remove"),
        ("POST", "/budgets/{database}/cap", "cap"),
    )

    async def mode(self, visit: Visit) -> Response:
        (database, name), mode = place(visit), visit.form.get("mode", "")
        if mode not in MODES:
            raise InvalidRequest(f"mode is {mode!r}, must be one of {', '.join(MODES)}")
        path, body = budget_path(database, name), {"mode": mode}
        if is_confirmed(visit):
            return await made(visit, "PATCH", path, body, name=name)
        before = await visit.api.get(path, BudgetDoc)
        change = await tried(visit, "PATCH", path, body)
        replay = None
        if mode != "off":
            replay = await replay_of(visit.api, database, {**before.settings, **body})
        return asked(
            visit,
            Confirmation(
                title=_MODE_TITLES[mode].format(name),
                action=f"/budgets/{in_path(database)}/{in_path(name)}/mode",
                button={"off": "Switch off", "warn": "Only warn", "enforce": "Enforce"}[mode],
                words=[_MODE_WORDS[mode], *of_fleet(before)],
                change=change,
                replay=replay,
                fields={"mode": mode, "revision": str(before.revision)},
                is_danger=mode == "enforce",
                back=f"/budgets/{in_path(database)}/{in_path(name)}",
            ),
        )

    async def forgive(self, visit: Visit) -> Response:
        database, name = place(visit)
        path = f"{budget_path(database, name)}/forgive"
        if is_confirmed(visit):
            return await made(visit, "POST", path, name=name)
        before = await visit.api.get(budget_path(database, name), BudgetDoc)
        owed = sum(bucket.debt_ms for bucket in before.buckets)
        words = [
            f"{before.buckets_total} buckets begin empty; their debt is {seconds(owed)} of CPU now."
            if before.counts is not None
            else "The debt is not known now."
        ]
        return asked(
            visit,
            Confirmation(
                f"Forgive the debt of {name}?",
                f"/budgets/{in_path(database)}/{in_path(name)}/forgive",
                "Forgive",
                words,
                await tried(visit, "POST", path),
                fields={"revision": str(before.revision)},
                back=f"/budgets/{in_path(database)}/{in_path(name)}",
            ),
        )

    async def remove(self, visit: Visit) -> Response:
        database, name = place(visit)
        path = budget_path(database, name)
        if is_confirmed(visit):
            return await made(visit, "DELETE", path)
        before = await visit.api.get(path, BudgetDoc)
        return asked(
            visit,
            Confirmation(
                f"Remove {name}?",
                f"/budgets/{in_path(database)}/{in_path(name)}/remove",
                "Remove",
                [
                    "What it limits runs without it at once. You can roll back.",
                    *of_fleet(before),
                ],
                await tried(visit, "DELETE", path),
                fields={"revision": str(before.revision)},
                is_danger=True,
                back=f"/budgets/{in_path(database)}/{in_path(name)}",
            ),
        )

    async def cap(self, visit: Visit) -> Response:
        """The switch for all. Without a revision: it is to work whatever else changes."""
        database, cap = visit.path["database"], visit.form.get("mode_cap", "")
        path, body = policy_path(database), {"mode_cap": cap}
        if is_confirmed(visit):
            return await made(visit, "PATCH", path, body)
        change = await tried(visit, "PATCH", path, body)
        return asked(
            visit,
            Confirmation(
                _CAP_TITLES.get(cap, "").format(database),
                f"/budgets/{in_path(database)}/cap",
                {"off": "Stop everything", "warn": "Only warn", "enforce": "Lift it"}.get(cap, ""),
                [_CAP_WORDS.get(cap, "")],
                change,
                fields={"mode_cap": cap},
                is_danger=cap != "warn",
                back=f"/budgets/{in_path(database)}",
            ),
        )


_MODE_TITLES = {
    "off": "Switch {} off?",
    "warn": "Let {} only warn?",
    "enforce": "Let {} block statements?",
}
_MODE_WORDS = {
    "off": "It matches and counts nothing until it is switched on again.",
    "warn": "Statements that do not fit are let run, and counted.",
    "enforce": "From then on a statement that does not fit gets SQLSTATE 53000. Those that run "
    "are not interrupted.",
}
_CAP_TITLES = {
    "off": "Stop every budget of {}?",
    "warn": "Let every budget of {} only warn?",
    "enforce": "Lift the switch for all of {}?",
}
_CAP_WORDS = {
    "off": "No budget applies any more, whatever each budget's mode is. It stays so when the "
    "policy changes and when the agent restarts, until it is lifted here.",
    "warn": "No statement is blocked any more; what would have been is counted. It stays so until "
    "it is lifted here.",
    "enforce": "Each budget follows its own mode again: those that enforce block at once.",
}


# --- the form of a budget ------------------------------------------------------------------------

GENEROUS = {"mode": "warn", "rate": 100, "capacity": 6000}
"""Limits that nobody reaches: to see what a client takes."""
FIRST_SEEN_S = 60.0
MEASURING = "all-statements"
MAX_ALIKE = 1000


class BudgetDrafts:
    """Handlers."""

    draft_routes = (
        ("GET", "/budgets/{database}/new", "new"),
        ("POST", "/budgets/{database}/new", "draft_new"),
        ("GET", "/budgets/{database}/{name}/edit", "edit"),
        ("POST", "/budgets/{database}/{name}/edit", "draft_edit"),
    )

    async def new(self, visit: Visit) -> Response:
        database = visit.path["database"]
        policy = await policy_of(visit, database, 0)
        match = match_of(visit.query)
        if visit.query.get("measure") == "all":
            draft = _measuring(await _names(visit, policy, MEASURING))
            return await self._previewed(visit, draft, None, policy)
        if not match:
            draft = BudgetForm(rules=(BudgetRuleForm(),), values={"rate": "20%", "capacity": "2s"})
            return await self._form(visit, draft, None, policy)
        draft = await _proposal(visit, policy, match)
        return await self._previewed(visit, draft, None, policy)

    async def draft_new(self, visit: Visit) -> Response:
        database, step = visit.path["database"], visit.form.get("step", "preview")
        if step == "make":
            settings = _carried(visit)
            path = budget_path(database, str(settings.get("name", "")))
            return await made(visit, "PUT", path, settings, name=str(settings.get("name", "")))
        policy = await policy_of(visit, database, 0)
        draft = draft_from(visit.form)
        if step != "preview":
            return await self._form(visit, stepped(draft, step), None, policy)
        return await self._previewed(visit, draft, None, policy)

    async def edit(self, visit: Visit) -> Response:
        database, name = place(visit)
        budget = await visit.api.get(budget_path(database, name), BudgetDoc)
        policy = await policy_of(visit, database, 0)
        return await self._form(visit, draft_of(budget.settings), budget, policy)

    async def draft_edit(self, visit: Visit) -> Response:
        database, name = place(visit)
        if (step := visit.form.get("step", "preview")) == "make":
            path = budget_path(database, name)
            return await made(visit, "PATCH", path, _carried(visit), name=name)
        budget = await visit.api.get(budget_path(database, name), BudgetDoc)
        policy = await policy_of(visit, database, 0)
        draft = draft_from({**visit.form, "name": name})
        if step != "preview":
            return await self._form(visit, stepped(draft, step), budget, policy)
        return await self._previewed(visit, draft, budget, policy)

    async def _previewed(
        self, visit: Visit, draft: BudgetForm, budget: BudgetDoc | None, policy: PolicyDoc
    ) -> Response:
        """Try it; with faults, the form is shown with them, and nothing can be confirmed."""
        database, is_new = policy.database, budget is None
        if not visit.may_change:
            return await self._form(visit, draft, budget, policy)
        if faults := await _own_faults(visit, draft, policy, is_new=is_new):
            return await self._form(visit, draft, budget, policy, faults=faults)
        path = budget_path(database, draft.name)
        body = settings_of(draft) if budget is None else changes_of(draft, budget.settings)
        try:
            change = await tried(visit, "PUT" if is_new else "PATCH", path, body)
        except ApiRejected as rejected:
            told = rejected.faults or (rejected.detail,)
            return await self._form(visit, draft, budget, policy, faults=faults_of(told, draft))
        settings = change.budget.settings if change.budget is not None else body
        replay = await replay_of(visit.api, database, settings)
        where = "new" if budget is None else f"{in_path(draft.name)}/edit"
        shown = Confirmation(
            title=f"Create {draft.name}" if is_new else f"Change {draft.name}",
            action=f"/budgets/{in_path(database)}/{where}",
            button=_create_label(draft) if is_new else "Change it",
            words=[
                *([change.budget.says] if change.budget is not None else []),
                *(of_fleet(budget) if budget is not None else []),
            ],
            change=change,
            replay=replay,
            fields={
                "document": msgspec.json.encode(body).decode(),
                **({} if budget is None else {"revision": str(budget.revision)}),
                "step": "make",
            },
        )
        return await self._form(visit, draft, budget, policy, shown=shown)

    async def _form(
        self,
        visit: Visit,
        draft: BudgetForm,
        budget: BudgetDoc | None,
        policy: PolicyDoc,
        *,
        faults: BudgetFormFaults | None = None,
        shown: Confirmation | None = None,
    ) -> Response:
        where = "new" if budget is None else f"{in_path(budget.name)}/edit"
        answer = part if visit.by_script else page
        template = "budgets_draft.html" if visit.by_script else "budgets_form.html"
        return answer(
            visit,
            template,
            database=policy.database,
            policy=policy,
            budget=budget,
            draft=draft,
            faults=faults or BudgetFormFaults(),
            confirm=shown,
            in_dialog=False,
            advised=advice_told,
            first=FIRST,
            more=MORE,
            labels=LABELS,
            units=UNITS,
            settings=BUDGET_SETTINGS,
            keys=KEYS,
            meanings=KEY_MEANINGS,
            action=f"/budgets/{in_path(policy.database)}/{where}",
        )


def _carried(visit: Visit) -> dict[str, Any]:
    """What was shown, and nothing else, is what is made."""
    try:
        found = msgspec.json.decode(visit.form.get("document", ""), type=dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidRequest("the preview cannot be read any more: preview it again") from None
    if "mode" in found and found["mode"] == "enforce":
        # A new budget warns first; to enforce is a step of its own, with figures.
        raise InvalidRequest("a budget made here begins in warn; enforce it afterwards")
    return found


def _measuring(taken: Sequence[str]) -> BudgetForm:
    """For every statement, and without a limit: so that all of them are measured."""
    about = {"comment": "measures every statement, limits none"}
    return BudgetForm(
        free_name(MEASURING, taken), about, rules=(BudgetRuleForm(is_everything=True),)
    )


async def _own_faults(
    visit: Visit, draft: BudgetForm, policy: PolicyDoc, *, is_new: bool
) -> BudgetFormFaults | None:
    if not draft.name:
        return BudgetFormFaults({"name": "give it a name, such as nightly-export"})
    if is_new and draft.name in await _names(visit, policy, draft.name):
        return BudgetFormFaults(
            {"name": f"{draft.name} is there already: change it, or use another name"}
        )
    return None


async def _names(visit: Visit, policy: PolicyDoc, like: str) -> list[str]:
    """Of the budgets that are called so, or nearly."""
    found = await policy_of(visit, policy.database, MAX_ALIKE, like)
    return [budget.name for budget in found.budgets]


def _create_label(draft: BudgetForm) -> str:
    return "Create it, off" if draft.value("mode") == "off" else "Create it, in warn"


async def _free_name(visit: Visit, policy: PolicyDoc, match: Mapping[str, str]) -> str:
    name = name_for(match)
    return free_name(name, await _names(visit, policy, name))


async def _proposal(visit: Visit, policy: PolicyDoc, match: Mapping[str, str]) -> BudgetForm:
    """Limits by what it takes now, as the server counts it, or as a replay tells."""
    if "query" in match:
        state = await visit.api.get(f"{policy_path(policy.database)}/state", StateDoc)
        pattern = next((p for p in state.patterns if p.query_id == match["query"]), None)
        if pattern is not None:
            by = {"fingerprint": pattern.fingerprint} if pattern.fingerprint else match
            used = used_by(pattern, state.cpus)
            name = await _free_name(visit, policy, by)
            return proposed(name, by, used, comment_of(pattern))
    name = await _free_name(visit, policy, match)
    trial = {**GENEROUS, "name": name, "rules": [{"match": dict(match)}]}
    seen = await replay_of(visit.api, policy.database, trial)
    known = not seen.fault and seen.span_s >= FIRST_SEEN_S and seen.statements
    state = await visit.api.get(f"{policy_path(policy.database)}/state", StateDoc)
    share = seen.cpu_before_s / seen.span_s / state.cpus if known and state.cpus else None
    return proposed(name, match, Used(share))
