"""What nobody is to overlook, whatever page they are on: a switch that was thrown, a state that is
lost, a store that cannot be written, settings that were refused, a replica that is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.responses import Response

from headgate.http.page.api import Refused, in_path
from headgate.http.page.shell import Visit, part
from headgate.present.budgets import thrown
from headgate.present.status import agent_notes
from headgate.present.view import Note
from headgate.wire.budgets import PoliciesDoc
from headgate.wire.status import StatusDoc


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    path: str


class BannerPage:
    routes = (("GET", "/banner", "live"),)

    async def live(self, visit: Visit) -> Response:
        status = await visit.api.get("/v1/status", StatusDoc)
        lines = [*_of_agent(status), *await _of_budgets(visit)]
        return part(visit, "banner.html", lines=lines)


def _of_agent(status: StatusDoc) -> Iterator[Line]:
    yield from (_line(note, "/") for note in agent_notes(status) if note.tone == "bad")
    yield from _of_shards(status)


def _line(note: Note, path: str, about: str = "") -> Line:
    return Line(f"{about}{note.word}: {note.says}", path)


def _of_shards(status: StatusDoc) -> Iterator[Line]:
    for database in status.databases:
        for member in database.shard.members if database.shard else ():
            if member.hopeless:
                told = f"{database.database}: {member.member} is skipped as hopeless"
                yield Line(f"{told}, and work goes on without it", "/")


async def _of_budgets(visit: Visit) -> list[Line]:
    try:
        policies = await visit.api.get("/v1/budgets", PoliciesDoc, {"most": 1})
    except Refused:  # Where budgets cannot be looked at, their own page says why.
        return []
    return [
        _line(note, f"/budgets/{in_path(doc.database)}", f"{doc.database}: ")
        for doc in policies.databases
        if (note := thrown(doc))
    ]
