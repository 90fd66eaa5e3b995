"""The pages /changes and /changes/{n}: revisions of the agent's own log, and the way back.

What going back would change is shown first; the button then makes just that (If-Match).
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from headgate.changes.api import (
    ChangeMadeDoc,
    ChangeRevisionDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
)
from headgate.changes.exchange_api import CopiesDoc
from headgate.changes.model import Sort
from headgate.check.api import StatusDoc
from headgate.errors import InvalidRequest
from headgate.page.api import ApiRejected, in_path
from headgate.page.shell import Visit, moved, page
from headgate.present.shard import copies_told

HISTORY, ROLLBACK = "/v1/changes/history", "/v1/changes/rollback"
MAX_REVISIONS = 100
SORTS = [sort.value for sort in Sort]


class ChangesPage:
    routes = (
        ("GET", "/changes", "page"),
        ("GET", "/changes/{n}", "revision"),
        ("POST", "/changes/rollback", "rollback"),
    )

    async def page(self, visit: Visit) -> Response:
        doc = await visit.api.get(HISTORY, ChangeRevisionsDoc, {"limit": MAX_REVISIONS})
        done = next((one for one in doc.revisions if str(one.n) == visit.query.get("done")), None)
        only = _only(visit.query.get("only", ""))
        status = await visit.api.get("/v1/status", StatusDoc)
        told = (copies_told(one.shard) for one in status.databases if one.shard is not None)
        return page(
            visit,
            "changes.html",
            revisions=doc.revisions,
            only=only,
            done=done,
            copies=[*filter(None, told)],
        )

    async def revision(self, visit: Visit) -> Response:
        n, only = _number(visit.path["n"]), _only(visit.query.get("only", ""))
        doc = None
        if n:
            doc = await visit.api.get(f"{HISTORY}/{n}", ChangeRevisionWholeDoc)
        back, fault = None, ""
        if visit.may_change:
            try:
                back = await _rolled_back(visit, n, only, dry_run=True)
            except ApiRejected as rejected:
                fault = "; ".join((rejected.detail, *rejected.faults))
        return page(
            visit,
            "changes_revision.html",
            n=n,
            doc=doc,
            back=back,
            fault=fault,
            only=only,
            sorts=SORTS,
        )

    async def rollback(self, visit: Visit) -> Response:
        n, only = _number(visit.form.get("n", "")), _only(visit.form.get("only", ""))
        revision = _number(visit.form.get("revision", ""))
        made = await _rolled_back(visit, n, only, revision=revision)
        return moved(visit, f"/changes?done={made.after_n}{f'&only={only}' if only else ''}")


async def revision_made(visit: Visit, n: str) -> ChangeRevisionDoc | None:
    """What the change was that led to a page, by its revision."""
    if not n.isdecimal() or len(n) > 15:
        return None
    try:
        doc = await visit.api.get(f"{HISTORY}/{in_path(n)}", ChangeRevisionWholeDoc)
    except ApiRejected:
        return None
    return doc.about


def copies_query(copies: CopiesDoc | None) -> dict[str, str]:
    """For the address of the page that says what became of a change (`copies_made`)."""
    return {} if copies is None else {"have": str(copies.have), "of": str(copies.of)}


def copies_made(visit: Visit) -> str:
    """Of a change for a shard: how many of its agents had it when it was acknowledged."""
    have, of = visit.query.get("have", ""), visit.query.get("of", "")
    is_told = all(one.isdecimal() and len(one) < 5 for one in (have, of)) and of != "0"
    return f"{have} of {of} replicas have a copy." if is_told else ""


async def _rolled_back(visit: Visit, n: int, only: str, **more: Any) -> ChangeMadeDoc:
    body = {"n": n, **({"only": [only]} if only else {})}
    query = {"dry_run": True} if more.pop("dry_run", False) else {}
    return await visit.api.send("POST", ROLLBACK, ChangeMadeDoc, body, query=query, **more)


def _number(told: str) -> int:
    if not told.isdecimal() or len(told) > 15:
        raise InvalidRequest(f"revision is {told[:40]!r}, must be a number", field="n")
    return int(told)


def _only(told: str) -> str:
    return told if told in SORTS else ""
