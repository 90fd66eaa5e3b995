"""What other sources report about a shard, besides its servers and agents: the fleet, and Patroni.

members/ in the fleet's store ──┐
Patroni's keys in etcd ─────────┴─► Hearsay ──► Shards: members to add, reported leader, status

It finds members and says which to contact first. Answers depend only on what servers report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import structlog

from headgate.base.ports import Clock
from headgate.fleet.members import FleetMember, called_alike, newest_of_each
from headgate.shard.members import FLEET, PATRONI
from headgate.shard.model import MAX_MEMBERS
from headgate.shard.patroni import PatroniFollower
from headgate.shard.patroni_keys import PatroniMember
from headgate.shard.plan import PeerPlan, ShardPlan, as_name, fits, found_peer
from headgate.shard.shard import Shard
from headgate.shard.topology import Downstream

log = structlog.get_logger()

TOLD_MAX_AGE_S = 300.0
"""Age limit of Patroni's data: until then the member that it names is worth contacting."""
SHOWN = 16


class Hearsay:
    def __init__(
        self,
        clock: Clock,
        add: Callable[[Shard, PeerPlan, str], None],
        note_unusable: Callable[[str, str, str], None],
    ) -> None:
        self._clock = clock
        self._add = add
        """Adds a member from a source to a shard, unless it is known already."""
        self._note_unusable = note_unusable
        self._fleet: Mapping[str, tuple[FleetMember, ...]] = MappingProxyType({})
        self._cluster = ""
        self._alike: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
        """By shard: names that agents of several hosts use, with those hosts."""
        self._unbelieved: dict[str, Mapping[str, str]] = {}
        self.patroni: dict[str, PatroniFollower] = {}
        """By scope."""

    # --- the fleet's store -----------------------------------------------------------------

    def hear_fleet(self, members: Iterable[FleetMember], cluster: str = "") -> None:
        """All that are registered, of any shard. `cluster`: as our own settings call it."""
        self._cluster = cluster
        found: dict[str, list[FleetMember]] = {}
        for member in members:
            if member.shard:
                found.setdefault(member.shard, []).append(member)
        self._fleet = MappingProxyType(
            {shard: self._some_of(shard, newest_of_each(them)) for shard, them in found.items()}
        )
        self._alike = {shard: called_alike(known) for shard, known in found.items()}

    def _some_of(self, shard: str, named: Mapping[str, FleetMember]) -> tuple[FleetMember, ...]:
        """If another program floods the store, the members known before stay."""
        known = {member.member for member in self.registered(shard)}
        kept = sorted(named, key=lambda name: (name not in known, name))[:MAX_MEMBERS]
        return tuple(named[name] for name in sorted(kept))

    def registered(self, shard: str) -> tuple[FleetMember, ...]:
        return self._fleet.get(shard, ())

    def unbelieved(self, shard: Shard) -> Iterator[tuple[str, str]]:
        """Member → why its address, or that of a member with the same name, is not contacted; or
        why it does not count."""
        yield from self._unbelieved.get(shard.name, {}).items()
        doubts = ((remote, shard.roster.doubt(remote)) for remote in shard.remotes.values())
        for remote, why in islice(((remote, why) for remote, why in doubts if why), SHOWN):
            teller = "Patroni lists" if remote.source == PATRONI else "the fleet's store has"
            yield remote.name, f"{teller} {remote.name} at {remote.url}; it does not count: {why}"

    def add_registered(self, shard: Shard, plans: Sequence[ShardPlan]) -> None:
        own = {local.name for local in shard.locals.values()}
        others = [m for m in self.registered(shard.name) if m.member not in own]
        reasons = {m.member: self._stranger(shard, m) or _why_not_asked(plans, m) for m in others}
        alike = self._alike.get(shard.name, {})
        told = {name: _why_not_both(name, hosts) for name, hosts in islice(alike.items(), SHOWN)}
        told |= {name: why for name, why in reasons.items() if why}
        self._unbelieved[shard.name] = told
        for name, why in self._unbelieved[shard.name].items():
            self._note_unusable(shard.name, name, why)
        peers = [PeerPlan(m.member, m.url, m.database) for m in others if not reasons[m.member]]
        for peer in peers:
            self._add_or_move(shard, peer)
        shard.forget_unlisted(FLEET, {peer.url for peer in peers})

    def _stranger(self, shard: Shard, member: FleetMember) -> str:
        """Why it belongs to another shard of the same name: then it is not even contacted."""
        where = f"{member.member} is registered at {member.url} under the name of this shard"
        own = {local.role.cluster for local in shard.locals.values() if local.role} - {""}
        if own and member.system not in {"", *own}:
            ours = " and ".join(sorted(own))
            return f"{where}, but its server's cluster is {member.system}, not {ours}: {_RENAME}"
        if self._cluster and member.cluster not in {"", self._cluster}:
            return f"{where}, but in cluster {member.cluster}, not in {self._cluster}: {_RENAME}"
        return ""

    def _add_or_move(self, shard: Shard, peer: PeerPlan) -> None:
        """An address that answers is kept, whatever the store says."""
        known = shard.remotes.get(peer.name)
        moved = known is not None and known.source == FLEET and known.url != peer.url
        if known is not None and moved and (known.lost is not None or known.report is None):
            log.info("member.moved", shard=shard.name, member=peer.name, url=peer.url)
            shard.drop_remote(peer.name)
        self._add(shard, peer, FLEET)

    # --- Patroni ---------------------------------------------------------------------------

    def add_listed(self, shard: Shard, plans: Sequence[ShardPlan]) -> None:
        own = {local.name for local in shard.locals.values()}
        peers = [
            peer
            for plan in plans
            for member in self._listed(plan)
            if member.name not in own and (peer := _listed_peer(plan, member))
        ]
        for peer in peers:
            self._add(shard, peer, PATRONI)
        shard.forget_unlisted(PATRONI, {peer.url for peer in peers})

    def _listed(self, plan: ShardPlan) -> tuple[PatroniMember, ...]:
        follower = self.patroni.get(plan.patroni)
        return follower.cluster.members if follower and follower.cluster else ()

    # --- what it comes to ------------------------------------------------------------------

    def leader(self, shard: Shard, plans: Sequence[ShardPlan]) -> str:
        """Patroni decides who leads; agents that are registered only repeat what servers said."""
        for plan in plans:
            if name := self._patroni_leader(plan.patroni):
                listed = [_listed_peer(plan, m) for m in self._listed(plan) if m.name == name]
                return _called_here(shard, name, {peer.url for peer in listed if peer})
        primaries = [m for m in self.registered(shard.name) if m.role == "primary"]
        if len(primaries) != 1:
            return ""
        return _called_here(shard, primaries[0].member, {primaries[0].url})

    def _patroni_leader(self, scope: str) -> str:
        follower = self.patroni.get(scope)
        if follower is None or follower.cluster is None or follower.heard_at is None:
            return ""
        fresh = self._clock.now().mono_s - follower.heard_at <= TOLD_MAX_AGE_S
        return follower.cluster.leader if fresh else ""

    def words(self, shard: Shard, plans: Sequence[ShardPlan]) -> tuple[str, ...]:
        """For status: a line each."""
        scopes = sorted({plan.patroni for plan in plans} & self.patroni.keys())
        lines = [self.patroni[scope].words() for scope in scopes]
        if registered := self.registered(shard.name):
            told = ", ".join(f"{member.member} ({member.role})" for member in registered[:SHOWN])
            more = f" and {len(registered) - SHOWN} more" if len(registered) > SHOWN else ""
            lines.append(f"registered in the fleet's store: {told}{more}")
        return (*lines, *(why for _, why in self.unbelieved(shard)))


_RENAME = "give each shard its own name"


def _why_not_asked(plans: Sequence[ShardPlan], member: FleetMember) -> str:
    """A program with write access to the store could enter any address and get our token. So the
    agent connects only to addresses that the settings allow."""
    named = {peer.name for plan in plans for peer in plan.peers}
    if member.member in named:
        return ""  # An operator said where it is, and that counts.
    if as_name(member.member) != member.member:
        return f"{as_name(member.member)} is registered under a name that no member may have"
    if not member.url:
        return f"{member.member} reports no address: set `advertise` or `listen` of its agent"
    templates = sorted({plan.discover for plan in plans if plan.discover})
    if any(fits(template, member.url) for template in templates):
        return ""
    where = f"{member.member} is registered at {member.url} but not contacted"
    if not templates:
        return f'{where}: set discover = "https://{{host}}:8087" here, or name it as a peer'
    return f"{where}: the address does not match discover = {' or '.join(templates)}"


def _why_not_both(name: str, hosts: Sequence[str]) -> str:
    return (
        f"agents {' and '.join(hosts[:SHOWN])} are both registered as {name}; only one of them is "
        "used. Give each its own `member` name in its settings"
    )


def _called_here(shard: Shard, name: str, urls: set[str]) -> str:
    """Settings, or the database, may name a member otherwise: then its address tells."""
    if name in shard.remotes:
        return name
    return next((remote.name for remote in shard.remotes.values() if remote.url in urls), name)


def _listed_peer(plan: ShardPlan, member: PatroniMember) -> PeerPlan | None:
    if plan.discover is None:
        return None
    return found_peer(plan, plan.discover, Downstream(member.name, member.host))
