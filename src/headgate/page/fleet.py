"""The fleet as a page.   GET /fleet ──► PageApi ──► GET /v1/fleet ──► HTML

Works without a script: it then asks for itself again every few seconds. What it shows comes from
other agents, through the store: nothing of it is trusted to be more than text.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

from headgate.errors import InvalidRequest
from headgate.fleet.view_api import FleetDoc
from headgate.page.api import ApiRejected, plain_text
from headgate.page.shell import Visit, page, part
from headgate.present.fleet import agent_notes, condition, holders, revision_words

PAGE_ROWS = 50
REFRESHES_S = (0, 5, 10, 30, 60)
DEFAULT_REFRESH_S = 10
_CHOICES: Mapping[str, str] = {
    "unhealthy": "false",
    "behind": "false",
    "region": "",
    "cluster": "",
    "shard": "",
    "page": "1",
    "rules_page": "1",
    "refresh": str(DEFAULT_REFRESH_S),
}
"""What may be chosen, and what is chosen where nothing is said."""


class FleetPage:
    routes = (("GET", "/fleet", "page"),)

    async def page(self, visit: Visit) -> Response:
        try:
            return await self._page(visit, visit.query)
        except (ApiRejected, InvalidRequest) as error:
            if error.status != 400:
                raise
            # A word in the form that cannot be a pattern: a person is shown the page all the same.
            return await self._page(visit, {}, fault=str(error))

    async def _page(self, visit: Visit, query: Mapping[str, str], fault: str = "") -> Response:
        if unknown := sorted(set(query) - set(_CHOICES)):
            message = f"unknown parameter {unknown[0]!r}; known: {', '.join(sorted(_CHOICES))}"
            raise InvalidRequest(message, field=unknown[0])
        chosen = {name: query.get(name, usual).strip() for name, usual in _CHOICES.items()}
        refresh_s = 0 if fault else _refresh(chosen["refresh"])
        asked = {name: value for name, value in chosen.items() if name != "refresh"}
        doc = await visit.api.get("/v1/fleet", FleetDoc, {**asked, "per_page": PAGE_ROWS})
        # The nearest page that there is, where the one asked for is beyond the last.
        here = {**chosen, "page": str(doc.page), "rules_page": str(doc.items_page)}
        shown, template = (part, "fleet_live.html") if visit.by_script else (page, "fleet.html")
        return shown(
            visit,
            template,
            status=400 if fault else 200,
            doc=doc,
            condition=condition,
            agent_notes=agent_notes,
            holders=holders,
            revision_words=revision_words,
            chosen=chosen,
            fault=fault,
            refresh_s=refresh_s,
            refreshes_s=REFRESHES_S,
            link=lambda **changed: fleet_link({**here, **changed}),
        )


def _refresh(value: str) -> int:
    if value not in map(str, REFRESHES_S):
        told = ", ".join(map(str, REFRESHES_S))
        raise InvalidRequest(f"refresh is {value!r}, must be one of {told}", field="refresh")
    return int(value)


def fleet_link(query: Mapping[str, object]) -> str:
    """Without what is so anyway."""
    said = {key: plain_text(value) for key, value in query.items()}
    told = {key: value for key, value in said.items() if value != _CHOICES[key]}
    return f"/fleet?{urlencode(told)}" if told else "/fleet"
