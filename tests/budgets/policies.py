"""Policies to try things on: any that parse_policy could give."""

from __future__ import annotations

from hypothesis import strategies as st

from headgate.budgets.policy import (
    FINGERPRINT,
    QUERY,
    REMOTE_ADDRESS,
    SYSTEM_KEYS,
    Budget,
    BudgetRule,
    Condition,
    InTransaction,
    Mode,
    Policy,
    UnknownHealth,
    When,
    address_value,
    budget_rule,
    number_value,
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
keys = st.one_of(
    st.sampled_from(SYSTEM_KEYS), st.text("abc_é", min_size=1, max_size=3).map("tag.{}".format)
)


@st.composite
def addresses(draw: st.DrawFn) -> bytes:
    packed = draw(st.ip_addresses()).packed
    value = address_value(packed, draw(st.integers(0, len(packed) * 8)))
    # The server sees these as IPv4; the parser rejects them.
    mapped = value[-1] >= 96 and value.startswith(bytes(10) + b"\xff\xff")
    return address_value(packed[12:], value[-1] - 96) if mapped else value


def values_of(key: str) -> st.SearchStrategy[bytes]:
    if key == REMOTE_ADDRESS:
        return addresses()
    if key == QUERY:
        return st.integers(1, 2**64 - 1).map(number_value)
    if key == FINGERPRINT:
        return st.integers(0, 2**64 - 1).map(number_value)
    return texts.map(str.encode)


@st.composite
def rules(draw: st.DrawFn) -> BudgetRule:
    named = draw(st.lists(keys, max_size=4, unique=True))
    conditions = [Condition(key, draw(values_of(key))) for key in named]
    return budget_rule(conditions, draw(st.lists(keys, max_size=4, unique=True)))


def limits(high: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, high)


@st.composite
def budgets(draw: st.DrawFn, name: str = "b") -> Budget:
    by_share = draw(st.booleans())
    return Budget(
        name,
        draw(st.sampled_from(Mode)),
        draw(limits(100_000)),
        draw(limits(6_000_000)),
        draw(limits(6_000_000)),
        draw(limits(100_000)) if by_share else None,
        None if by_share else draw(limits(65_535)),
        draw(limits(100_000)),
        draw(st.sampled_from(When)),
        draw(st.sampled_from(InTransaction)),
        draw(st.integers(0, 10_000)),
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.none() | st.integers(1, 10**15)),
        draw(st.text("ab é", max_size=5)),
        tuple(draw(st.lists(rules(), max_size=4))),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    names = draw(st.lists(st.text("ab0", min_size=1, max_size=4), max_size=4, unique=True))
    usernames = st.lists(texts.filter(bool), max_size=3, unique=True)
    return Policy(
        tuple(draw(budgets(name)) for name in names),
        draw(st.sampled_from(UnknownHealth)),
        tuple(draw(usernames)),
    )
