r"""The tags in a statement's comments.   /*controller='export',tenant='acme'*/ ──► ParsedTags

As SQLCommenter writes them, and as older libraries did: `key='value'`, `key=value`, `key:value`,
joined by commas. A comment that is anything else is prose, and counts for nothing; a pair whose
key or value cannot be a tag is ignored and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from headgate.budgets.ask import Dialect
from headgate.budgets.sql_text import block_comments

MAX_TAGS = 32
MAX_KEY_BYTES = 65
MAX_VALUE_BYTES = 1024
MAX_TEXT_BYTES = 8192
"""Of all keys and values of a statement together."""


@dataclass(frozen=True, slots=True)
class ParsedTags:
    pairs: dict[bytes, bytes] = field(default_factory=dict)
    ignored: int = 0
    """Malformed, too long, or too many."""
    duplicates: int = 0
    """A key again: the last one counts."""


_PAIR = re.compile(
    rb"""\s* (?P<key> [A-Za-z0-9_\-./%]+ )
     (?: = ' (?P<quoted> (?: [^'\\] | \\. )* ) ' | [=:] (?P<bare> [A-Za-z0-9_\-./:%]+ ) ) \s*""",
    re.VERBOSE | re.DOTALL,
)
_ACCEPTED = re.compile(rb"[A-Za-z0-9_\-./:,]+")


def read_tags(text: bytes, dialect: Dialect) -> ParsedTags:
    pairs: dict[bytes, bytes] = {}
    ignored = duplicates = 0
    for comment in block_comments(text, dialect):
        for key, value in _pairs_of(comment):
            if not _may_stand(key, value) or not _has_room(pairs, key, value):
                ignored += 1
                continue
            duplicates += key in pairs
            pairs[key] = value
    return ParsedTags(pairs, ignored, duplicates)


def _pairs_of(comment: bytes) -> list[tuple[bytes, bytes]]:
    """All of them, decoded; none if any part of the comment is not a pair."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while pair := _PAIR.match(comment, at):
        found.append((_decoded(pair["key"]), _value_of(pair)))
        at = pair.end()
        if at == len(comment):
            return found
        if comment[at : at + 1] != b",":
            break
        at += 1
    return []


def _value_of(pair: re.Match[bytes]) -> bytes:
    if pair["bare"] is not None:
        return _decoded(pair["bare"])
    return _decoded(pair["quoted"].replace(rb"\'", b"'"))


def _decoded(raw: bytes) -> bytes:
    return unquote_to_bytes(raw)


def _may_stand(key: bytes, value: bytes) -> bool:
    return (
        len(key) <= MAX_KEY_BYTES
        and len(value) <= MAX_VALUE_BYTES
        and _ACCEPTED.fullmatch(key) is not None
        and _ACCEPTED.fullmatch(value) is not None
    )


def _has_room(pairs: dict[bytes, bytes], key: bytes, value: bytes) -> bool:
    if key not in pairs and len(pairs) == MAX_TAGS:
        return False
    return sum(len(k) + len(v) for k, v in pairs.items()) + len(key) + len(value) <= MAX_TEXT_BYTES
