"""Which server replicates from which, as far as servers report: for drawing, never for deciding.

A server knows its upstream by an address or an identity, and its replicas by the names they
give; agents know members by name and URL. If these match in more than one way, the answer is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from headgate.shard.model import MemberView
from headgate.shard.topology import Downstream, RoleSeen


def upstream_members(members: Sequence[MemberView]) -> dict[str, str]:
    """Replica → the member that it replicates from."""
    roles, listed = _roles(members), _listings(members)
    by_server_id = _unique((role.server_id, name) for name, role in roles.items())
    by_place = _unique([*_hosts(members), *((view.member.name,) * 2 for view in members)])
    found = {}
    for name, role in roles.items():
        above = by_server_id.get(role.upstream_id)
        if above is None and name in listed:
            above, _ = listed[name]
        if above is None:
            above = by_place.get(_host(role.upstream))
        if above is not None and above != name:
            found[name] = above
    return found


def bytes_behind(members: Sequence[MemberView]) -> dict[str, int]:
    """Replica → bytes, from the list of whichever member's server has it."""
    return {
        name: replica.bytes_behind
        for name, (_, replica) in _listings(members).items()
        if replica.bytes_behind is not None
    }


def _listings(members: Sequence[MemberView]) -> dict[str, tuple[str, Downstream]]:
    """Member → who lists it, and as what: by its own name, else by an address of its own."""
    hosts = _unique(_hosts(members))
    found: dict[str, list[tuple[str, Downstream]]] = {}
    names = {view.member.name for view in members}
    for lister, role in _roles(members).items():
        for replica in role.downstream:
            known = hosts.get(replica.name) or hosts.get(replica.host)
            member = replica.name if replica.name in names else known
            if member is not None and member != lister:
                found.setdefault(member, []).append((lister, replica))
    return {member: places[0] for member, places in found.items() if len(places) == 1}


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Key → value, where the key is not empty and has one value only."""
    values: dict[str, set[str]] = {}
    for key, value in pairs:
        values.setdefault(key, set()).add(value)
    return {key: held.pop() for key, held in values.items() if key and len(held) == 1}


def _roles(members: Sequence[MemberView]) -> Mapping[str, RoleSeen]:
    reports = ((view.member.name, view.member.report) for view in members)
    return {name: report.role for name, report in reports if report and report.role}


def _hosts(members: Sequence[MemberView]) -> list[tuple[str, str]]:
    return [(_host_of(view), view.member.name) for view in members]


def _host_of(view: MemberView) -> str:
    report = view.member.report
    try:
        return urlsplit((report.url if report else "") or view.member.url).hostname or ""
    except ValueError:
        return ""


def _host(place: str) -> str:
    """Of host:port."""
    return (place.rpartition(":")[0] or place).strip("[]")
