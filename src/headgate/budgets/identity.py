"""Who the client of a statement is, and what the operator's rules do to it: for a compiled policy.

    RuleBook ──gates_of──► ClientRule ─┐
    IdentityTerms ─────────────────────┴─► ServerRules ──► compiled.py ──► native/client.c, trust.c

The proxy names clients by the same terms; what it does to each, its mind decides (proxy/gates.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from struct import Struct
from typing import Annotated, NamedTuple

from headgate.base.declared import Key, names, text, unknown, whole
from headgate.rules.matching import (
    EVERYONE,
    FOREVER,
    Kind,
    Rule,
    RuleBook,
    strictest_first,
    throttles,
)

MAX_SOURCES = 16
MAX_TRUSTS = 16
MAX_TRUSTED_USERS = 8
MAX_SECRET_BYTES = 64
MAX_TARGET_BYTES = 127
MAX_WINDOWS = 4
"""Of a rule with a schedule: the next ones. Later ones are published when their time is near."""
NEVER_MS = 2**63 - 1
ALL_SHARES = 2**32 - 1
"""A ratio of 1."""


class SourceKind(Enum):
    """Where the name of a client may come from. In the order of HG_FROM_*, from 1 on."""

    TAG = "tag"
    ATTRIBUTE = "attribute"
    APPLICATION = "application_name"
    VARIABLE = "variable"
    USER = "user"
    DATABASE = "database"
    PATTERN = "pattern"


@dataclass(frozen=True, slots=True)
class IdentitySource:
    kind: SourceKind
    name: str = ""
    """Of the tag, attribute or variable."""

    @property
    def shown(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


def _users(value: object) -> tuple[str, ...]:
    found = names(MAX_TRUSTED_USERS)(value)
    for user in found:
        if not 1 <= len(user.encode()) <= 63:
            raise ValueError(f"names {user!r}, must have 1–63 bytes")
    return found


@dataclass(frozen=True, slots=True)
class TagTrust:
    """A tag that counts only from these users, or if it is signed."""

    tag: Annotated[str, Key("Key of the tag; `*`: every tag.", text(65))]
    users: Annotated[tuple[str, ...], Key("Database users whose tag counts.", _users)] = ()
    signed: Annotated[
        bool, Key("true: it counts from every user, if headgate_sig has a valid signature.")
    ] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        if not self.tag:
            yield "tag", "is missing"


def _sources(value: object) -> tuple[IdentitySource, ...]:
    return tuple(_source(entry) for entry in names(MAX_SOURCES)(value))


def _source(raw: str) -> IdentitySource:
    kind_text, _, name = raw.partition(":")
    try:
        kind = SourceKind(kind_text)
    except ValueError:
        raise ValueError(
            f"names {raw!r}: {unknown(kind_text, [k.value for k in SourceKind])}"
        ) from None
    named = kind in (SourceKind.TAG, SourceKind.ATTRIBUTE, SourceKind.VARIABLE)
    if named is not bool(name) or len(name.encode()) > 63:
        how = f"{kind.value}:NAME with a name of at most 63 bytes" if named else kind.value
        raise ValueError(f"names {raw!r}, must be {how}")
    return IdentitySource(kind, name)


@dataclass(frozen=True, slots=True)
class IdentityTerms:
    sources: Annotated[
        tuple[IdentitySource, ...],
        Key(
            "Where a client's name comes from; the first source that has one: `tag:KEY`, "
            "`attribute:NAME`, `variable:NAME`, `application_name`, `user`, `database`, `pattern`.",
            _sources,
            "tag:headgate_client, application_name, user",
            name="order",
        ),
    ] = (
        IdentitySource(SourceKind.TAG, "headgate_client"),
        IdentitySource(SourceKind.APPLICATION),
        IdentitySource(SourceKind.USER),
    )
    trusts: tuple[TagTrust, ...] = ()
    priority_tag: Annotated[
        str,
        Key(
            "Tag whose value, 0–100, is a statement's priority. The health gate never delays or "
            "blocks priority 0. Empty: no such tag.",
            text(65),
        ),
    ] = ""
    default_priority: Annotated[int, Key("Priority without that tag.", whole(0, 100))] = 100
    secret: bytes = field(default=b"", repr=False)


IN_POSTGRES = frozenset(
    {SourceKind.TAG, SourceKind.APPLICATION, SourceKind.USER, SourceKind.DATABASE,
     SourceKind.PATTERN}
)  # fmt: skip
"""What a server itself knows of a session; the rest only a proxy sees."""


class GateKind(IntEnum):
    """hg_gate's kinds."""

    REJECTS = 1
    EXEMPTS = 2
    EXEMPTS_PARTLY = 3
    """From some metrics only: exempts no statement, and comes before broader exemptions."""


class ClientRule(NamedTuple):
    """A rule, within a span of time (hg_gate)."""

    target: str
    rule: str
    reason: str
    ratio: int
    """Of ALL_SHARES."""
    kind: GateKind
    rank: int
    """Of two that are equally specific, the lower one decides."""
    from_ms: int = 0
    until_ms: int = NEVER_MS

    @property
    def first_level(self) -> str:
        return self.target.split(":")[0]

    @property
    def levels(self) -> int:
        return 0 if self.target == EVERYONE else len(self.target.split(":"))


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What goes with the budgets to a server."""

    identity: IdentityTerms | None = None
    """None: clients have no names there."""
    gates: tuple[ClientRule, ...] = ()


NO_SERVER_RULES = ServerRules()


def gates_of(book: RuleBook, database: str, wall_s: float) -> tuple[ClientRule, ...]:
    """Rules that throttle or exempt clients of this database, now or soon."""
    mine = [rule for rule in book.rules if _acts(rule, database, wall_s, book.suspended)]
    if all(rule.kind is not Kind.EXEMPT or rule.metrics for rule in mine):
        # One from some metrics only takes a full exemption's place, and does nothing else there.
        mine = [rule for rule in mine if rule.kind is not Kind.EXEMPT]
    return tuple(
        ClientRule(
            rule.target,
            rule.id,
            "" if rule.kind is Kind.EXEMPT else throttles(rule),
            0 if rule.kind is Kind.EXEMPT else _shares(rule),
            _gate_kind(rule),
            rank,
            *span,
        )
        for rank, rule in enumerate(strictest_first(mine))
        for span in _spans(rule, wall_s)
    )


def _acts(rule: Rule, database: str, wall_s: float, suspended: frozenset[str]) -> bool:
    if rule.database not in ("", database) or rule.expires_at <= wall_s:
        return False
    if len(rule.target.encode()) > MAX_TARGET_BYTES:
        return False  # No client has such a name there.
    if rule.kind is Kind.EXEMPT:
        return rule.id not in suspended
    # A ratio of 0 throttles nobody, but decides before a broader rule.
    return rule.kind in (Kind.HOLD, Kind.RATIO)


def _gate_kind(rule: Rule) -> GateKind:
    if rule.kind is not Kind.EXEMPT:
        return GateKind.REJECTS
    return GateKind.EXEMPTS_PARTLY if rule.metrics else GateKind.EXEMPTS


def _shares(rule: Rule) -> int:
    return ALL_SHARES if rule.rejects_all else min(ALL_SHARES - 1, int(rule.ratio * 2**32))


def _spans(rule: Rule, wall_s: float) -> Iterator[tuple[int, int]]:
    if rule.windows is None:
        yield 0, _ms(rule.expires_at)
        return
    coming = sorted(window for window in rule.windows if window[1] > wall_s)
    for begin, end in coming[:MAX_WINDOWS]:
        if begin < rule.expires_at:
            yield _ms(begin), _ms(min(end, rule.expires_at))


def _ms(wall_s: float) -> int:
    return NEVER_MS if wall_s == FOREVER else min(NEVER_MS, int(wall_s * 1000))


# --- as native/headgate.h has it ----------------------------------------------------------------

_SOURCE = Struct("<II64s")
_TRUST = Struct(f"<66sH{64 * MAX_TRUSTED_USERS}sB3x")
_TAIL = Struct(f"<66sBB{MAX_SECRET_BYTES}s")
_COUNTS = Struct("<II")
IDENTITY_BYTES = _COUNTS.size + MAX_SOURCES * _SOURCE.size + MAX_TRUSTS * _TRUST.size + _TAIL.size
_FROM = {kind: number for number, kind in enumerate(SourceKind, start=1)}


def identity_bytes(terms: IdentityTerms) -> bytes:
    """An hg_identity. The key is in it: it goes to the server's own memory, and to no document."""
    sources = [
        _SOURCE.pack(_FROM[source.kind], len(source.name.encode()), source.name.encode())
        for source in terms.sources
    ]
    trusts = [_trust_bytes(trust) for trust in terms.trusts]
    tail = _TAIL.pack(
        terms.priority_tag.encode(), terms.default_priority, len(terms.secret), terms.secret
    )
    return b"".join(
        (
            _COUNTS.pack(len(sources), len(trusts)),
            _filled(sources, MAX_SOURCES * _SOURCE.size),
            _filled(trusts, MAX_TRUSTS * _TRUST.size),
            tail,
        )
    )


def _trust_bytes(trust: TagTrust) -> bytes:
    users = _filled(
        (user.encode().ljust(64, b"\0") for user in trust.users), 64 * MAX_TRUSTED_USERS
    )
    return _TRUST.pack(trust.tag.encode(), len(trust.users), users, trust.signed)


def _filled(parts: Iterable[bytes], size: int) -> bytes:
    whole = b"".join(parts)
    assert len(whole) <= size
    return whole.ljust(size, b"\0")
