"""Who replicates from whom, as far as servers tell: for drawing, never for deciding.

A server knows its upstream by an address or an identity, and its replicas by the names they
give; agents know members by name and URL. Where the two meet in more than one way, nothing
is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from headgate.core.shard import MemberView
from headgate.core.topology import Downstream, RoleSeen


def upstream_members(members: Sequence[MemberView]) -> dict[str, str]:
    """Replica → the member that it replicates from."""
    found = {}
    for view in members:
        above = _by_identity(view, members) or _by_its_list(view, members)
        above = above or _by_address(view, members)
        if above is not None and above != view.member.name:
            found[view.member.name] = above
    return found


def bytes_behind(members: Sequence[MemberView]) -> dict[str, int]:
    """Replica → bytes, from the list of whichever member's server has it."""
    found: dict[str, int] = {}
    for view in members:
        for lister in members:
            listed = _listed(view, lister, members)
            if listed is not None and listed.bytes_behind is not None:
                found.setdefault(view.member.name, listed.bytes_behind)
    return found


def _by_identity(view: MemberView, members: Sequence[MemberView]) -> str | None:
    role = _role(view)
    if role is None or not role.upstream_id:
        return None
    return _only(members, lambda other: _server_id(other) == role.upstream_id)


def _by_its_list(view: MemberView, members: Sequence[MemberView]) -> str | None:
    return _only(members, lambda other: _listed(view, other, members) is not None)


def _by_address(view: MemberView, members: Sequence[MemberView]) -> str | None:
    role = _role(view)
    if role is None or not role.upstream:
        return None
    host = role.upstream.rpartition(":")[0].strip("[]") or role.upstream
    return _only(members, lambda other: host in (other.member.name, host_of(other)))


def _listed(
    view: MemberView, lister: MemberView, members: Sequence[MemberView]
) -> Downstream | None:
    """This member, as `lister`'s server lists it: by its name, else by an address of its own."""
    role = _role(lister)
    if role is None or lister is view:
        return None
    named = [one for one in role.downstream if one.name and one.name == view.member.name]
    if named:
        return named[0] if len(named) == 1 else None
    host = host_of(view)
    if not host or _only(members, lambda other: host_of(other) == host) is None:
        return None
    there = [one for one in role.downstream if host in (one.host, one.name)]
    return there[0] if len(there) == 1 else None


def _only(members: Iterable[MemberView], fits: Callable[[MemberView], bool]) -> str | None:
    names = [view.member.name for view in members if fits(view)]
    return names[0] if len(names) == 1 else None


def _role(view: MemberView) -> RoleSeen | None:
    return view.member.report.role if view.member.report else None


def _server_id(view: MemberView) -> str:
    role = _role(view)
    return role.server_id if role else ""


def host_of(view: MemberView) -> str:
    report = view.member.report
    try:
        return urlsplit((report.url if report else "") or view.member.url).hostname or ""
    except ValueError:
        return ""
