"""The page /audit: who changed what, newest first; in a fleet its revisions besides."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from headgate.changes.api import ChangeRevisionsDoc, ChangeRevisionWholeDoc, Log
from headgate.check.api import AuditDoc, AuditsDoc
from headgate.page.api import ApiRejected, in_path
from headgate.page.shell import Visit, page, part, zone
from headgate.present.changes import audit_line, did_words

LIMITS = (100, 300, 1000)
MAX_SHOWN = 300
"""Entries in the page; all of the limit are looked through."""
REVISIONS = 50
MAX_CHARS = 200
NOT_FOUND = 404


class AuditPage:
    routes = (
        ("GET", "/audit", "page"),
        ("GET", "/audit/fleet/{n}", "revision"),
    )

    async def page(self, visit: Visit) -> Response:
        wanted, limit = _wanted(visit.query), _limit(visit.query)
        found = await visit.api.get("/v1/audit", AuditsDoc, {"limit": limit})
        shown = await to_thread(_shown, found.audit, wanted, limit)
        if visit.by_script:
            return await to_thread(lambda: part(visit, "audit_live.html", **shown))
        shown |= await _fleet(visit)
        return await to_thread(lambda: page(visit, "audit.html", **shown))

    async def revision(self, visit: Visit) -> Response:
        path = f"/v1/changes/history/{in_path(visit.path['n'])}"
        doc = await visit.api.get(path, ChangeRevisionWholeDoc, {"log": Log.FLEET.value})
        if visit.by_script:
            return part(visit, "audit_revision.html", doc=doc)
        return page(visit, "audit_fleet.html", doc=doc)


def _wanted(query: Mapping[str, str]) -> AuditFilter:
    who, action, target = (
        query.get(name, "").strip()[:MAX_CHARS] for name in ("who", "action", "target")
    )
    return AuditFilter(who, action, target)


def _limit(query: Mapping[str, str]) -> int:
    """One of the choices: a hundred, or all that the API tells where something is looked for."""
    asked = query.get("limit", "")
    if asked.isdecimal() and int(asked) in LIMITS:
        return int(asked)
    return LIMITS[0] if _wanted(query).is_all else LIMITS[-1]


def _shown(docs: Sequence[AuditDoc], wanted: AuditFilter, limit: int) -> dict[str, Any]:
    chosen = [doc for doc in docs if wanted.meets(doc)]
    said = {"who": wanted.who, "action": wanted.action, "target": wanted.target}
    more = next((one for one in LIMITS if one > limit), None) if len(docs) >= limit else None
    query = urlencode({name: value for name, value in said.items() if value} | {"limit": more})
    return {
        "wanted": wanted,
        "limit": limit,
        "looked_at": len(docs),
        "chosen": len(chosen),
        "entries": [audit_line(doc, zone()) for doc in chosen[:MAX_SHOWN]],
        "actions": [(name, did_words(name)) for name in actions_of(docs, wanted.action)],
        "more": more,
        "more_href": f"/audit?{query}",
    }


async def _fleet(visit: Visit) -> dict[str, Any]:
    """Revisions, where this agent belongs to a fleet and can ask for them."""
    try:
        found = await visit.api.get(
            "/v1/changes/history",
            ChangeRevisionsDoc,
            {"log": Log.FLEET.value, "limit": REVISIONS},
        )
    except ApiRejected as rejected:
        fault = "" if rejected.status == NOT_FOUND else rejected.detail
        return {"fleet": None, "fleet_fault": fault}
    return {"fleet": found, "fleet_fault": ""}


# --- choosing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditFilter:
    who: str = ""
    action: str = ""
    target: str = ""

    @property
    def is_all(self) -> bool:
        return not (self.who or self.action or self.target)

    def meets(self, doc: AuditDoc) -> bool:
        return (
            self.who.lower() in doc.who.lower()
            and self.action in ("", doc.action)
            and self.target.lower() in doc.target.lower()
        )


def actions_of(docs: Sequence[AuditDoc], chosen: str) -> list[str]:
    """Those that there are, and the one that was asked for."""
    return sorted({doc.action for doc in docs} | ({chosen} if chosen else set()))
