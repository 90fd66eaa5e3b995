"""The form of a budget: filled in, tried, shown, and made.   Draft ──► dry run ──► PUT, PATCH

What was shown is what is made: the confirmation carries the very document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from headgate.errors import InvalidRequest
from headgate.http.page.api import Refused, in_path
from headgate.http.page.budgets_asking import (
    Confirmation,
    budget_path,
    made,
    of_fleet,
    place,
    policy_of,
    policy_path,
    replay_of,
    tried,
)
from headgate.http.page.budgets_form import (
    GROUPS,
    KEYS,
    Draft,
    Faults,
    RuleDraft,
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
from headgate.http.page.shell import Visit, page, part
from headgate.present.budgets import advice_told
from headgate.traffic.limits import BUDGET_SETTINGS, KEY_MEANINGS
from headgate.wire.budgets import BudgetDoc, PolicyDoc, StateDoc

GENEROUS = {"mode": "warn", "rate": 100, "capacity": 6000}
"""Limits that nobody meets: to see what somebody takes."""
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
            draft = Draft(rules=(RuleDraft(),), values={"rate": "20", "capacity": "200"})
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
        self, visit: Visit, draft: Draft, budget: BudgetDoc | None, policy: PolicyDoc
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
        except Refused as refused:
            told = refused.faults or (refused.detail,)
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
        draft: Draft,
        budget: BudgetDoc | None,
        policy: PolicyDoc,
        *,
        faults: Faults | None = None,
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
            faults=faults or Faults(),
            confirm=shown,
            in_dialog=False,
            advised=advice_told,
            groups=GROUPS,
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


def _measuring(taken: Sequence[str]) -> Draft:
    """For every statement, and without a limit: so that all of them are measured."""
    about = {"comment": "measures every statement, limits none"}
    return Draft(free_name(MEASURING, taken), about, rules=(RuleDraft(is_everything=True),))


async def _own_faults(
    visit: Visit, draft: Draft, policy: PolicyDoc, *, is_new: bool
) -> Faults | None:
    if not draft.name:
        return Faults({"name": "give it a name, such as nightly-export"})
    if is_new and draft.name in await _names(visit, policy, draft.name):
        return Faults({"name": f"{draft.name} is there already: change that one, or name it anew"})
    return None


async def _names(visit: Visit, policy: PolicyDoc, like: str) -> list[str]:
    """Of the budgets that are called so, or nearly."""
    found = await policy_of(visit, policy.database, MAX_ALIKE, like)
    return [budget.name for budget in found.budgets]


def _create_label(draft: Draft) -> str:
    return "Create it, off" if draft.value("mode") == "off" else "Create it, in warn"


async def _free_name(visit: Visit, policy: PolicyDoc, match: Mapping[str, str]) -> str:
    name = name_for(match)
    return free_name(name, await _names(visit, policy, name))


async def _proposal(visit: Visit, policy: PolicyDoc, match: Mapping[str, str]) -> Draft:
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
