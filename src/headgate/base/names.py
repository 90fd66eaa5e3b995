"""Names of clients, metrics, databases and scopes: parsed once, at the edge.

A client's identity is a path of tokens, `d666bbfc:vcopier:vreplication:online-ddl`; rules
match tokens, never positions. Every name has a maximum length, so that tables keyed by names
have a bounded size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from headgate.errors import InvalidName

MAX_IDENTITY_CHARS = 256
MAX_IDENTITY_TOKENS = 8
MAX_LEVEL_CHARS = 128
MAX_METRIC_CHARS = 63

_TOKEN = re.compile(rf"[\w.@+=/~%-]{{1,{MAX_LEVEL_CHARS}}}")
_IDENTITY = re.compile(rf"{_TOKEN.pattern}(?::{_TOKEN.pattern}){{0,{MAX_IDENTITY_TOKENS - 1}}}")
_SPELLED = re.compile(rf"[\w.@+=/~%:-]{{1,{MAX_LEVEL_CHARS}}}")
"""Several levels are no longer than one may be: no level is too long."""
_made = tuple.__new__
_METRIC = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_DATABASE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")

# Vitess names two of our metrics differently; its users keep their words.
METRIC_ALIASES = {
    "mysqld-loadavg": "loadavg",
    "mysqld-datadir-used-ratio": "disk_used",
}


class Identity(NamedTuple):
    """The client of a check. `tokens` are the levels, in the order the client gave them."""

    text: str
    tokens: tuple[str, ...]

    def __str__(self) -> str:
        return self.text


# The identity of a check without a name, where such checks are allowed at all.
ANONYMOUS = Identity("anonymous", ("anonymous",))


def parse_identity(text: str) -> Identity:
    """`""` is ANONYMOUS; whether it may pass is the agent's setting, not the name's."""
    if not text or text == ANONYMOUS.text:
        return ANONYMOUS
    if _SPELLED.fullmatch(text):
        # The long expression goes back and forth at each level: five times the cost of this.
        tokens = tuple(text.split(":"))
        if len(tokens) <= MAX_IDENTITY_TOKENS and "" not in tokens:
            return Identity(text, tokens)
    elif len(text) <= MAX_IDENTITY_CHARS and _IDENTITY.fullmatch(text):
        return Identity(text, tuple(text.split(":")))
    raise _not_a_client(text)


def plain_identity(text: str) -> Identity:
    """The same of text that has nothing but letters, digits and _.@~:- of ASCII."""
    if len(text) > MAX_LEVEL_CHARS or text == ANONYMOUS.text:
        return parse_identity(text)
    tokens = tuple(text.split(":"))
    if len(tokens) > MAX_IDENTITY_TOKENS or "" in tokens:
        return parse_identity(text)
    return _made(Identity, (text, tokens))


def _not_a_client(text: str) -> InvalidName:
    if len(text) > MAX_IDENTITY_CHARS:
        return InvalidName(f"client name has {len(text)} characters, at most {MAX_IDENTITY_CHARS}")
    tokens = text.split(":")
    if len(tokens) > MAX_IDENTITY_TOKENS:
        return InvalidName(
            f"client name {text!r} has {len(tokens)} levels, at most {MAX_IDENTITY_TOKENS}"
        )
    wrong = next(token for token in tokens if not _TOKEN.fullmatch(token))
    return InvalidName(
        f"client name {text!r}: level {wrong!r} must be 1–128 letters, digits or ._@+=/~%-"
    )


class Scope(Enum):
    """Whose metrics a check reads: this host's, or the whole shard's."""

    HOST = "host"
    SHARD = "shard"


_SCOPES = {"host": Scope.HOST, "self": Scope.HOST, "shard": Scope.SHARD}


def parse_scope(text: str) -> Scope:
    try:
        return _SCOPES[text]
    except KeyError:
        raise InvalidName(f"unknown scope {text!r}: use host (or self) or shard") from None


class MetricRef(NamedTuple):
    """A metric as a check names it: `lag`, `self/lag`, `shard/lag`."""

    metric: str
    scope: Scope | None = None

    def __str__(self) -> str:
        return f"{self.scope.value}/{self.metric}" if self.scope else self.metric


def parse_metric(text: str) -> str:
    name = METRIC_ALIASES.get(text, text)
    if not _METRIC.fullmatch(name):
        raise InvalidName(
            f"metric name {text!r} must start with a–z and hold at most {MAX_METRIC_CHARS}"
            " of a–z, 0–9, _ and -"
        )
    return name


def parse_metric_ref(text: str) -> MetricRef:
    scope, slash, metric = text.partition("/")
    if not slash:
        return MetricRef(parse_metric(text))
    return MetricRef(parse_metric(metric), parse_scope(scope))


def parse_database(text: str) -> str:
    if not _DATABASE.fullmatch(text):
        raise InvalidName(
            f"database name {text!r} must be 1–63 of A–Z, a–z, 0–9, _, . and -, "
            "and not start with . or -"
        )
    return text


# --- groups of clients ---------------------------------------------------------------------
# Shared names for clients that are too many to count singly.   names.py ──► crowds ──► counting
#
# When there is no room for one more client, the least telling level of its name is dropped, and
# then the next: `u7:etl:nightly` is counted as `other:etl:nightly`, then as `other:nightly`, then
# as `other`. So the sum over a level stays complete.

OTHER = "other"


def crowds_of(client: str, is_shared: Callable[[str], bool]) -> Iterator[str]:
    """Wider and wider groups; the last is `other`.

    By custom the most specific level comes first, so it is dropped first. But a level that several
    clients share is kept longer than one that only this client has, at any position.
    """
    tokens = client.split(":")
    at = tokens.index(OTHER) if OTHER in tokens else None
    left = [token for token in tokens if token != OTHER]
    while len(left) > 1:
        dropped = next((n for n, token in enumerate(left) if not is_shared(token)), 0)
        del left[dropped]
        at = dropped if at is None else min(at, dropped)
        yield ":".join([*left[:at], OTHER, *left[at:]])
    yield OTHER


def is_crowd(client: str) -> bool:
    return OTHER in client.split(":")


def levels_of(client: str) -> list[str]:
    """Each once; that of the nameless is none that a rule could match."""
    return [level for level in dict.fromkeys(client.split(":")) if level != OTHER]
