"""Policies, texts and sequences of operations, as hypothesis draws them."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any, NamedTuple

from hypothesis import strategies as st

from headgate.budgets.matching import Now
from headgate.budgets.model import (
    Dialect,
    Statement,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
)
from headgate.budgets.sql_text import fingerprint

MS = 1_000_000

# --- texts --------------------------------------------------------------------------------------

_BITS = re.findall(
    r"\S+",
    r"""
    a b e E x n u& U& null IN é _ 1 .5 . 1e 1e+5 0x 0xf 0b1 0o 8 1.e2into $1 ? :n
    explain analyze analyse desc verbose format = json table select local /*!5 /*M!100100 /*!99999
    ' '' \ \' " "" ` `` $ $$ $x$ /* */ /*+ /*! -- # ; , ( ) (1) (1,2)
    = : :: <= >= <> != || -> ->> - > %41 %2 %zz k:v c=1 ,b=2
    a='1' a='2' b='x_y' t='acme' /*a=1*/ /*t=acme,a='1'*/ /*a='%31'*/
    """,
)
TEXTS = st.lists(st.sampled_from([*_BITS, " ", "\n", "\r", "\t", "-- ", "\0"]), max_size=25).map(
    lambda bits: "".join(bits).encode()
)
RAW_TEXTS = st.one_of(TEXTS, st.binary(max_size=40))
LONG_TAGS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 40), st.integers(0, 1030)), max_size=40
).map(lambda pairs: b"/*" + b",".join(_long_pair(*pair) for pair in pairs) + b"*/")


def _long_pair(letter: str, number: int, length: int) -> bytes:
    return f"{letter}{number % 5}='{letter * length}'".encode()


SHAPES = [b"SELECT 1", b"SELECT a FROM t WHERE b IN (1, 2)", b"insert into t values (1), (2)"]
_STATEMENT_TEXTS = st.one_of(
    st.sampled_from(SHAPES),
    TEXTS,
    st.sampled_from([f"SELECT 1 /*t={n},a={n % 3}*/".encode() for n in range(24)]),
)

# --- policies -----------------------------------------------------------------------------------

NAMES = ("etl", "web", "batch", "tenants", "all")
_NUMBERS = st.sampled_from([0, 1, 5, 10.5, 33.333, 50, 100])
_SECONDS = st.sampled_from([0, 0.001, 1, 10, 20.25, 100, 6000])
_CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "username": st.sampled_from(["app", "etl", "é"]),
        "database": st.sampled_from(["shop", "app"]),
        "application_name": st.sampled_from(["psql", ""]),
        "remote_address": st.sampled_from(
            ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "::/0", "2001:db8::/33"]
        ),
        "query": st.sampled_from([7, -1, "18446744073709551615"]),
        "fingerprint": st.sampled_from(
            [f"{fingerprint(s, Dialect.POSTGRES):016x}" for s in SHAPES]
        ),
        "tag.a": st.sampled_from(["1", "2"]),
        "tag.t": st.sampled_from(["acme", "3"]),
    },
)
_EACHES = st.lists(
    st.sampled_from(["username", "remote_address", "query", "fingerprint", "tag.t", "tag.a"]),
    max_size=2,
    unique=True,
)


@st.composite
def _rules(draw: st.DrawFn) -> dict[str, Any]:
    match, each = draw(_CONDITIONS), draw(_EACHES)
    keep = draw(st.integers(0, 2))
    match = dict(list(match.items())[:keep])
    each = [key for key in each if key not in match]
    return {name: value for name, value in (("match", match), ("each", each)) if value}


_SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(["off", "warn", "enforce", "enforce", "enforce"]),
    "rate": _NUMBERS,
    "capacity": _SECONDS,
    "burst": _SECONDS,
    "warning_threshold": st.sampled_from([0, 50, 80.5, 100]),
    "when": st.sampled_from(["always", "unhealthy"]),
    "in_transaction": st.sampled_from(("charge", "block")),
    "max_delay_s": st.sampled_from([0, 0.001, 0.25, 10]),
    "epoch": st.integers(0, 2),
    "expires_at": st.sampled_from([1000, 2000.5]),
    "comment": st.sampled_from(["INC-7", 'a "quoted" ü \\ one']),
    "penalty_s": st.sampled_from([0, 0.02, 1]),
    "max_delayed": st.sampled_from([0, 8, 1000]),
}


@st.composite
def _budgets(draw: st.DrawFn, name: str) -> dict[str, Any]:
    settings = draw(st.fixed_dictionaries({}, optional=_SETTINGS))
    places = draw(st.sampled_from([None, "max_workers", "concurrency"]))
    if places:
        settings[places] = draw(st.integers(0, 12))
    if draw(st.booleans()):  # so that most buckets owe something
        settings |= {"rate": draw(_NUMBERS), "capacity": draw(_SECONDS)}
    return {"name": name, **settings, "rules": draw(st.lists(_rules(), max_size=3))}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4))
    document: dict[str, Any] = {"budgets": [draw(_budgets(name)) for name in names]}
    general = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "health_unknown": st.sampled_from(["healthy", "unhealthy"]),
                "exempt_usernames": st.just(["monitor", "é"]),
            },
        )
    )
    return {"policy": general, **document} if general else document


# --- operations ---------------------------------------------------------------------------------


class Operation(NamedTuple):
    name: str
    gap_ns: int
    who: StatementIdentity
    statement: Statement
    now: Now
    ask: StatementCheck
    """Its time is still to be set."""
    actual_ns: int
    aborted: bool
    which: int
    """Of the holdings, or of the policies."""


def _flags(flags: list[StatementFlags]) -> StatementFlags:
    made = StatementFlags.PLANNED
    for flag in flags:
        made |= flag
    return made


WHOS = st.builds(
    StatementIdentity,
    st.sampled_from(["app", "etl", "monitor", "é", "", None]),
    st.sampled_from(["shop", "app", None]),
    st.sampled_from(["psql", "", None]),
    st.sampled_from(["10.1.2.3", "10.9.9.9", "2001:db8::1", "::ffff:10.1.0.9", "::", None]).map(
        lambda address: ip_address(address) if address else None
    ),
)
STATEMENTS = st.builds(
    Statement,
    _STATEMENT_TEXTS,
    st.sampled_from(Dialect),
    st.sampled_from([0, 7, 2**64 - 1]),
    st.sampled_from([None, None, 5]),
    st.sampled_from([False, False, True]),
)
NOWS = st.builds(
    Now, st.sampled_from([0, 999_999, 1_000_000, 3_000_000]), st.sampled_from([True, False, None])
)
_COSTS = st.one_of(st.integers(0, 2000 * MS), st.integers(0, 3 * 10**13))
_FLAGS = st.lists(st.sampled_from(list(StatementFlags)), max_size=2).map(_flags)
ASKS = st.builds(
    StatementCheck,
    now_ns=st.just(0),
    wall_ms=st.integers(0, 5),
    plan_cost=st.sampled_from([0.0, 0.01, 1.0, 12.75, 1e4, 1e16, float("inf"), float("nan")]),
    cost_ns=_COSTS,
    p90_ns=st.sampled_from([0, 5 * MS, 2**64 - 1]),
    pattern=st.sampled_from([0, 1, 2, 3, 6, 10, 14, 18, 2**63 + 2]),
    shape=st.sampled_from([0, 0, 1, 2, 3, 4, 5, 65_535]),
    workers=st.sampled_from([0, 1, 1, 1, 2, 3, 70_000]),
    flags=_FLAGS,
)


OPERATIONS = st.builds(
    Operation,
    name=st.sampled_from(
        ["take"] * 6 + ["settle"] * 4 + ["check", "check", "pause", "resume", "publish", "charge"]
    ),
    gap_ns=st.one_of(
        st.just(0), st.integers(0, 500 * MS), st.integers(0, MS), st.just(2_000_000 * MS)
    ),
    who=WHOS,
    statement=STATEMENTS,
    now=NOWS,
    ask=ASKS,
    actual_ns=_COSTS,
    aborted=st.booleans(),
    which=st.integers(0, 7),
)
