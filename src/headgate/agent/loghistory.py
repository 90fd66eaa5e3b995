"""The fleet's revisions as they are kept, newest first.   store: log/<n> ──► Revision, Revision …

Each says on which it was built: numbers are skipped where a store was restored. One that cannot
be read, for a newer version made it, takes no other away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from headgate.agent.ports import SharedLog
from headgate.core.change import MAX_REVISIONS, Revision, log_key
from headgate.core.change_codec import read_revision_at

REVISIONS_A_PAGE = 10
"""Read at once: each may be half a megabyte."""


class LogHistory:
    def __init__(self, store: SharedLog) -> None:
        self._store = store

    async def revision(self, n: int) -> Revision | None:
        return (await self._listed(log_key(n))).get(n)

    async def back_from(self, n: int, *, after_n: int = 0) -> AsyncIterator[Revision]:
        """Down to the first beyond `after_n`, or as far as they are kept."""
        page: Mapping[int, Revision] = {}
        at = -1
        for _ in range(MAX_REVISIONS):
            if n <= after_n:
                return
            if at != n // REVISIONS_A_PAGE:
                at = n // REVISIONS_A_PAGE
                page = await self._listed(log_key(n)[:-1])
            revision = page.get(n)
            if revision is None:
                return
            yield revision
            n = revision.built_on

    async def _listed(self, prefix: str) -> Mapping[int, Revision]:
        """What lies there under any other key is none."""
        entries = (await self._store.list((prefix,))).entries
        found = (read_revision_at(entry.key, entry.value) for entry in entries)
        return {revision.n: revision for revision in found if revision is not None}
