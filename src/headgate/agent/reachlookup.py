"""Look up whom a reach meets.   SharedLog (members/, shards/) ──► Reached, or why nobody can tell

A preview, and never a condition: what cannot be told holds up no change.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.agent.logwriter import beside
from headgate.agent.ports import SharedLog
from headgate.core.change import MEMBERS, SHARDS
from headgate.core.change_log import Reached
from headgate.core.fleet_reached import prefixes_of, reached_by
from headgate.core.reach import EVERYWHERE, Level, Reach
from headgate.errors import StoreUnavailable

NOBODY = "no agent has told where it stands yet"


async def look_up(store: SharedLog, reaches: Iterable[Reach]) -> Reached:
    wanted = sorted(set(reaches), key=str)
    if not wanted:
        return Reached(0, 0, 0)
    reach = wanted[0] if len(wanted) == 1 else EVERYWHERE
    try:
        found = await _read(store, wanted)
    except StoreUnavailable as error:
        return await _counted(store, wanted, Reached(unknown=str(error), reach=reach))
    if found.hosts or found.shards or await _is_told(store):
        return found
    return Reached(unknown=NOBODY, reach=reach)


async def _read(store: SharedLog, reaches: list[Reach]) -> Reached:
    listing = await store.list(prefixes_of(reaches))
    return await beside(len(listing.entries), lambda: reached_by(reaches, listing.entries))


async def _is_told(store: SharedLog) -> bool:
    """Whether there is anything to look among."""
    try:
        return await store.count(SHARDS) + await store.count(MEMBERS) > 0
    except StoreUnavailable:
        return False


async def _counted(store: SharedLog, reaches: list[Reach], unknown: Reached) -> Reached:
    """The whole of a fleet too large to be listed in time can still be counted."""
    if not any(reach.level is Level.FLEET for reach in reaches):
        return unknown
    try:
        shards, hosts = await store.count(SHARDS), await store.count(MEMBERS)
    except StoreUnavailable:
        return unknown
    return Reached(shards, hosts, None, (), f"only counted: {unknown.unknown}", unknown.reach)
