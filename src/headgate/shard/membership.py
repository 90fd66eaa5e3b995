"""Who becomes a member of a shard besides our own databases, and what others report about it.

settings, operators ────────────┐
the server's list of replicas ──┤
members/ in the fleet's store ──┼─► Membership ──► Shard: members to add, reported leader, status
Patroni's keys in etcd ─────────┘

What is found says which members to contact. Answers depend only on what servers report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import structlog

from headgate.base.ports import Clock, PeerLink
from headgate.errors import InvalidName
from headgate.fleet.members import FleetMember, called_alike, newest_of_each
from headgate.shard.members import (
    FLEET,
    FOUND,
    HEARSAY,
    PATRONI,
    PeerPlan,
    RemoteMember,
    ShardPlan,
    as_name,
    fits,
    found_peer,
)
from headgate.shard.model import MAX_MEMBERS, Pull
from headgate.shard.patroni import PatroniFollower
from headgate.shard.patroni_keys import PatroniMember
from headgate.shard.shard import Shard
from headgate.shard.topology import Downstream, Role

log = structlog.get_logger()

TOLD_MAX_AGE_S = 300.0
"""Age limit of Patroni's data: until then the member that it names is worth contacting."""
UNSEATED_AFTER_S = 5.0
"""An agent may still be starting."""
SHOWN = 16


class Membership:
    def __init__(self, clock: Clock, open_link: Callable[[str], PeerLink]) -> None:
        self._clock = clock
        self._open_link = open_link
        self.each: dict[str, Shard] = {}
        """The shards of this agent, by name."""
        self._unusable: set[str] = set()
        """Found, but the name is no valid member name, or the address is not allowed; logged
        once."""
        self._fleet: Mapping[str, tuple[FleetMember, ...]] = MappingProxyType({})
        self._cluster = ""
        self._alike: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
        """By shard: names that agents of several hosts use, with those hosts."""
        self._unbelieved: dict[str, Mapping[str, str]] = {}
        self._patroni: dict[str, PatroniFollower] = {}
        """By scope."""

    def listen(self, shard: Shard) -> None:
        """To what is reported about a new shard."""
        succession = shard.succession
        succession.told, succession.told_words = (
            lambda: self._leader(shard),
            lambda: self._words(shard),
        )
        self._add_registered(shard)
        self._add_listed(shard)

    # --- one member ------------------------------------------------------------------------

    def add(self, shard: Shard, peer: PeerPlan, source: str) -> None:
        """Or InvalidName."""
        link = self._open_link(peer.url)
        shard.add_remote(RemoteMember(peer.name, peer.database, link, source, self._clock))

    def try_to_add(self, shard: Shard, peer: PeerPlan, source: str) -> bool:
        try:
            self.add(shard, peer, source)
        except InvalidName as error:
            self._note_unusable(shard.name, peer.name, str(error))
            return False
        return True

    def _note_unusable(self, shard: str, name: str, detail: str) -> None:
        if name not in self._unusable and len(self._unusable) < MAX_MEMBERS:
            self._unusable.add(name)
            log.warning("member.unusable", shard=shard, name=name, detail=detail)

    def _add_found(self, shard: Shard, peer: PeerPlan, source: str = FOUND) -> None:
        """Unless it is known already."""
        roster = shard.roster
        urls = (remote.url for remote in shard.remotes.values())
        if peer.url in {roster.url, *roster.aliases, *urls}:
            return
        other = shard.remotes.get(peer.name)
        if other is not None and _gives_way(other, source, self._clock.now().mono_s):
            shard.drop_remote(peer.name)
        if roster.has(peer.name) or len(shard.remotes) >= MAX_MEMBERS:
            return
        if self.try_to_add(shard, peer, source):
            log.info(
                "member.found", shard=shard.name, member=peer.name, url=peer.url, source=source
            )

    # --- servers ---------------------------------------------------------------------------

    def discover(self, shard: Shard) -> None:
        """Add the agents of replicas that the server lists, and of the server it follows."""
        for local in shard.locals.values():
            plan = local.plan
            if plan.discover is None or local.role is None:
                continue
            found = list(local.role.downstream)
            if host := local.role.upstream.rpartition(":")[0]:
                found.append(Downstream("", host.strip("[]")))
            peers = [peer for one in found if (peer := found_peer(plan, plan.discover, one))]
            for peer in peers:
                self._add_found(shard, peer)
            _forget_unheard(shard, {peer.url for peer in peers})

    def meet(self, shard: Shard, pull: Pull) -> None:
        """A primary that we did not know: members that it pulls from must know it as well. Only
        if the settings say which addresses agents have: the agent connects to no others."""
        template = shard.locals[pull.database].plan.discover
        leads = pull.role is not None and pull.role.role is Role.PRIMARY
        if leads and template is not None and fits(template, pull.url):
            self._add_found(shard, PeerPlan(pull.sender, pull.url, pull.database))

    # --- the fleet's store -----------------------------------------------------------------

    def found_in_fleet(self, members: Iterable[FleetMember], *, cluster: str = "") -> None:
        """All agents that are registered now, of our shards and perhaps of others. `cluster`: as
        our own settings call it."""
        self._cluster = cluster
        found: dict[str, list[FleetMember]] = {}
        for member in members:
            if member.shard:
                found.setdefault(member.shard, []).append(member)
        self._fleet = MappingProxyType(
            {
                shard: _some_of(newest_of_each(them), known=self.registered(shard))
                for shard, them in found.items()
            }
        )
        self._alike = {shard: called_alike(known) for shard, known in found.items()}
        for shard in self.each.values():
            self._add_registered(shard)
            shard.roll()

    def registered(self, shard: str) -> tuple[FleetMember, ...]:
        return self._fleet.get(shard, ())

    @property
    def unbelieved(self) -> Mapping[str, str]:
        """Registered in the fleet's store → why it is not contacted, or does not count."""
        shards = self.each.values()
        return MappingProxyType(
            {name: why for shard in shards for name, why in self._doubted(shard)}
        )

    def _doubted(self, shard: Shard) -> Iterator[tuple[str, str]]:
        """Member → why its address, or that of a member with the same name, is not contacted; or
        why it does not count."""
        yield from self._unbelieved.get(shard.name, {}).items()
        doubts = ((remote, shard.roster.doubt(remote)) for remote in shard.remotes.values())
        for remote, why in islice(((remote, why) for remote, why in doubts if why), SHOWN):
            teller = "Patroni lists" if remote.source == PATRONI else "the fleet's store has"
            yield remote.name, f"{teller} {remote.name} at {remote.url}; it does not count: {why}"

    def _add_registered(self, shard: Shard) -> None:
        own, plans = {local.name for local in shard.locals.values()}, shard.roster.plans
        others = [m for m in self.registered(shard.name) if m.member not in own]
        reasons = {
            m.member: _why_stranger(shard, self._cluster, m) or _why_not_asked(plans, m)
            for m in others
        }
        alike = self._alike.get(shard.name, {})
        told = {
            name: f"agents {' and '.join(hosts[:SHOWN])} are both registered as {name}; only one "
            "of them is used. Give each its own `member` name in its settings"
            for name, hosts in islice(alike.items(), SHOWN)
        }
        told |= {name: why for name, why in reasons.items() if why}
        self._unbelieved[shard.name] = told
        for name, why in told.items():
            self._note_unusable(shard.name, name, why)
        peers = [PeerPlan(m.member, m.url, m.database) for m in others if not reasons[m.member]]
        for peer in peers:
            known = shard.remotes.get(peer.name)
            moved = known is not None and known.source == FLEET and known.url != peer.url
            # An address that answers is kept, whatever the store says.
            if known is not None and moved and (known.lost is not None or known.report is None):
                log.info("member.moved", shard=shard.name, member=peer.name, url=peer.url)
                shard.drop_remote(peer.name)
            self._add_found(shard, peer, FLEET)
        _forget_unlisted(shard, FLEET, {peer.url for peer in peers})

    # --- Patroni ---------------------------------------------------------------------------

    def follow_patroni(self, follower: PatroniFollower) -> None:
        """One that has been followed for that scope before is no longer listened to."""
        self._patroni[follower.scope] = follower

        def changed() -> None:
            if self._patroni.get(follower.scope) is not follower:
                return
            for _, shard in sorted(self.each.items()):
                if any(plan.patroni == follower.scope for plan in shard.roster.plans):
                    self._add_listed(shard)
                    shard.roll()

        follower.watch(changed)
        changed()

    def unfollow_patroni(self, scope: str) -> None:
        self._patroni.pop(scope, None)

    def _add_listed(self, shard: Shard) -> None:
        own = {local.name for local in shard.locals.values()}
        peers = [
            peer
            for plan in shard.roster.plans
            for member in self._listed(plan)
            if member.name not in own and (peer := _listed_peer(plan, member))
        ]
        for peer in peers:
            self._add_found(shard, peer, PATRONI)
        _forget_unlisted(shard, PATRONI, {peer.url for peer in peers})

    def _listed(self, plan: ShardPlan) -> tuple[PatroniMember, ...]:
        follower = self._patroni.get(plan.patroni)
        return follower.cluster.members if follower and follower.cluster else ()

    # --- what it comes to ------------------------------------------------------------------

    def _leader(self, shard: Shard) -> str:
        """Patroni decides who leads; agents that are registered only repeat what servers said."""
        for plan in shard.roster.plans:
            if name := self._patroni_leader(plan.patroni):
                listed = [_listed_peer(plan, m) for m in self._listed(plan) if m.name == name]
                return _called_here(shard, name, {peer.url for peer in listed if peer})
        primaries = [m for m in self.registered(shard.name) if m.role == "primary"]
        if len(primaries) != 1:
            return ""
        return _called_here(shard, primaries[0].member, {primaries[0].url})

    def _patroni_leader(self, scope: str) -> str:
        follower = self._patroni.get(scope)
        if follower is None or follower.cluster is None or follower.heard_at is None:
            return ""
        fresh = self._clock.now().mono_s - follower.heard_at <= TOLD_MAX_AGE_S
        return follower.cluster.leader if fresh else ""

    def _words(self, shard: Shard) -> tuple[str, ...]:
        """For status: a line each."""
        scopes = sorted({plan.patroni for plan in shard.roster.plans} & self._patroni.keys())
        lines = [self._patroni[scope].words() for scope in scopes]
        if registered := self.registered(shard.name):
            told = ", ".join(f"{member.member} ({member.role})" for member in registered[:SHOWN])
            more = f" and {len(registered) - SHOWN} more" if len(registered) > SHOWN else ""
            lines.append(f"registered in the fleet's store: {told}{more}")
        return (*lines, *(why for _, why in self._doubted(shard)))


_RENAME = "give each shard its own name"


def _some_of(
    named: Mapping[str, FleetMember], *, known: Sequence[FleetMember]
) -> tuple[FleetMember, ...]:
    """If another program floods the store, the members known before stay."""
    before = {member.member for member in known}
    kept = sorted(named, key=lambda name: (name not in before, name))[:MAX_MEMBERS]
    return tuple(named[name] for name in sorted(kept))


def _why_stranger(shard: Shard, cluster: str, member: FleetMember) -> str:
    """Why it belongs to another shard of the same name: then it is not even contacted."""
    where = f"{member.member} is registered at {member.url} under the name of this shard"
    own = shard.roster.clusters()
    if own and member.system not in {"", *own}:
        ours = " and ".join(sorted(own))
        return f"{where}, but its server's cluster is {member.system}, not {ours}: {_RENAME}"
    if cluster and member.cluster not in {"", cluster}:
        return f"{where}, but in cluster {member.cluster}, not in {cluster}: {_RENAME}"
    return ""


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


def _called_here(shard: Shard, name: str, urls: set[str]) -> str:
    """Settings, or the database, may name a member otherwise: then its address tells."""
    if name in shard.remotes:
        return name
    return next((remote.name for remote in shard.remotes.values() if remote.url in urls), name)


def _listed_peer(plan: ShardPlan, member: PatroniMember) -> PeerPlan | None:
    if plan.discover is None:
        return None
    return found_peer(plan, plan.discover, Downstream(member.name, member.host))


def _forget_unheard(shard: Shard, urls: set[str]) -> None:
    """Members that were found once, never reported, and are no longer in `urls`."""
    for remote in list(shard.remotes.values()):
        unheard = remote.report is None and remote.claim is None and remote.lost is not None
        if remote.source == FOUND and unheard and remote.url not in urls:
            shard.drop_remote(remote.name)


def _forget_unlisted(shard: Shard, source: str, urls: set[str]) -> None:
    """One that its list (`urls`) no longer has, that does not answer, and that no server of
    ours feeds: only all three together say that it is gone for good."""
    fed = {piece for found in shard.roster.downstream() for piece in (found.name, found.host)}
    for remote in list(shard.remotes.values()):
        answers = remote.lost is None and remote.tried_at is not None
        if remote.source != source or remote.url in urls or answers or remote.name in fed:
            continue
        log.info("member.gone", shard=shard.name, member=remote.name, url=remote.url)
        shard.drop_remote(remote.name)


def _gives_way(other: RemoteMember, source: str, now: float) -> bool:
    """An address where nobody ever answered gives way to another one: what the settings make of a
    server's list to what the agents or Patroni say, at once; that one in turn, should nobody
    answer there for a while. So both are tried, until one is right."""
    if other.has_answered:
        return False
    lost_s = 0.0 if other.lost_since is None else now - other.lost_since
    is_guess = other.source == FOUND and source in HEARSAY
    outlived = other.source in HEARSAY and source == FOUND and lost_s >= UNSEATED_AFTER_S
    return is_guess or outlived
