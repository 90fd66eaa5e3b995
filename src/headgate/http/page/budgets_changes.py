"""Switches of budgets, and of all of them: each is shown what it would do, then confirmed."""

from __future__ import annotations

from starlette.responses import Response

from headgate.errors import InvalidRequest
from headgate.http.page.api import in_path
from headgate.http.page.budgets_asking import (
    Confirmation,
    asked,
    budget_path,
    is_confirmed,
    made,
    of_fleet,
    place,
    policy_path,
    replay_of,
    tried,
)
from headgate.http.page.shell import Visit
from headgate.present.budgets import seconds
from headgate.wire.budgets import BudgetDoc

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
        owed = sum(bucket.owed_ms for bucket in before.buckets)
        words = [
            f"{before.buckets_total} buckets begin anew; {seconds(owed)} of CPU are owed now."
            if before.counts is not None
            else "What is owed now is not known."
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
                    "What it holds back runs free at once. The history keeps it: one can go back.",
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
    "off": "No statement is judged any more, whatever each budget's mode is. It stays so when the "
    "policy changes and when the agent restarts, until it is lifted here.",
    "warn": "No statement is blocked any more; what would have been is counted. It stays so until "
    "it is lifted here.",
    "enforce": "Each budget follows its own mode again: those that enforce block at once.",
}
