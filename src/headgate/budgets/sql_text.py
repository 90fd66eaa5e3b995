"""A statement's text in pieces: comments, literals, names.   text ──► tags, fingerprint

No grammar: just enough of both dialects to know what is a literal, what is a comment, and where
each ends. What is never closed goes on to the end of the text. A number ends where its digits do:
servers take `1.INTO` and `1e5INTO` (MySQL), `1INTO` (Postgres before 15) for a number and a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from headgate.budgets.model import Dialect, hg_hash

SPACE, COMMENT, LITERAL, QUOTED, WORD, OTHER = (
    "space",
    "comment",
    "literal",
    "quoted",
    "word",
    "other",
)


class SqlPiece(NamedTuple):
    kind: str
    text: bytes


_COMMON = rb"""
  | (?P<number> 0[xX][0-9A-Fa-f_]+ | 0[bB][01_]+ | 0[oO][0-7_]+
      | (?: [0-9][0-9_]* (?: \. [0-9_]* )? | \.[0-9][0-9_]* ) (?: [eE][+-]?[0-9]+ )? )
  | (?P<word> [A-Za-z_\x80-\xff] [A-Za-z0-9_$\x80-\xff]* )
  | (?P<other> :: | <= | >= | <> | != | \|\| | ->> | -> | . )
"""
# Backslashes escape in E'' alone: standard_conforming_strings is on.
_POSTGRES = re.compile(
    rb"""
    (?P<space> [\ \t\n\r\f\v]+ )
  | (?P<line> --[^\n\r]* )
  | (?P<block> /\* )
  | (?P<literal> [eE]' (?: [^'\\] | \\. | '' )*+ (?: '|\\?\Z )
      | (?: [bBxXnN] | [uU]& )? ' (?: [^'] | '' )*+ (?: '|\Z )
      | \$ (?P<tag> (?: [A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]* )? ) \$ .*? (?: \$(?P=tag)\$ | \Z )
      | \$[0-9]+ | \? | (?<!:):[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]* )
  | (?P<quoted> (?: [uU]& )? " (?: [^"] | "" )*+ (?: "|\Z ) )
"""
    + _COMMON,
    re.VERBOSE | re.DOTALL,
)
_MYSQL = re.compile(
    rb"""
    (?P<space> [\ \t\n\r\f\v]+ )
  | (?P<line> \#[^\n]* | -- (?= [\x00-\x20\x7f] | \Z ) [^\n]* )
  | (?P<block> /\* )
  | (?P<literal> [bBxXnN]? ' (?: [^'\\] | \\. | '' )*+ (?: '|\\?\Z )
      | " (?: [^"\\] | \\. | "" )*+ (?: "|\\?\Z )
      | \? )
  | (?P<quoted> ` (?: [^`] | `` )*+ (?: `|\Z ) )
"""
    + _COMMON,
    re.VERBOSE | re.DOTALL,
)
_TOKEN = {Dialect.POSTGRES: _POSTGRES, Dialect.MYSQL: _MYSQL}
_HINT = re.compile(rb"/\*M?![0-9]*")
_KIND = {"line": COMMENT, "block": COMMENT, "number": LITERAL, "tag": LITERAL}
_BRACKET = re.compile(rb"/\*|\*/")
_CLOSING = re.compile(rb"\*/")


def pieces(text: bytes, dialect: Dialect) -> Iterator[SqlPiece]:
    """The whole text, in order: joined again, the pieces are the text."""
    at = 0
    while at < len(text):
        piece = _piece_at(text, at, dialect)
        yield piece
        at += len(piece.text)


def tokens(text: bytes, dialect: Dialect) -> Iterator[SqlPiece]:
    """What a server runs: neither space nor comments, but what is in a versioned comment of
    MySQL (`/*!50000 … */`, MariaDB's `/*M!100100 … */`)."""
    at, in_hint = 0, False
    while at < len(text):
        hint = _HINT.match(text, at) if dialect is Dialect.MYSQL else None
        if hint is not None:
            at, in_hint = hint.end(), True
        elif in_hint and text.startswith(b"*/", at):
            at, in_hint = at + 2, False
        else:
            piece = _piece_at(text, at, dialect)
            at += len(piece.text)
            if piece.kind not in (SPACE, COMMENT):
                yield piece


def block_comments(text: bytes, dialect: Dialect) -> Iterator[bytes]:
    """What is between `/*` and `*/`; hints and versioned code (`/*+`, `/*!`) left out."""
    for piece in pieces(text, dialect):
        if (
            piece.kind == COMMENT
            and piece.text[:2] == b"/*"
            and piece.text[2:3] not in (b"+", b"!")
        ):
            yield piece.text[2:].removesuffix(b"*/")


def _piece_at(text: bytes, at: int, dialect: Dialect) -> SqlPiece:
    found = _TOKEN[dialect].match(text, at)
    assert found is not None
    group = found.lastgroup or OTHER
    end = _end_of_block(text, at, dialect) if group == "block" else found.end()
    return SqlPiece(_KIND.get(group, group), text[at:end])


def _end_of_block(text: bytes, at: int, dialect: Dialect) -> int:
    """Postgres' comments nest; MySQL's end at the first `*/`, be it in `/*/`."""
    depth, place = 1, at + 2
    bracket = _BRACKET if dialect is Dialect.POSTGRES else _CLOSING
    while found := bracket.search(text, place):
        place = found.end()
        depth += 1 if found.group() == b"/*" else -1
        if depth == 0:
            return place
    return len(text)


# --- tags ----------------------------------------------------------------------------------------

# The tags in a statement's comments.   /*controller='export',tenant='acme'*/ ──► ParsedTags
#
# As SQLCommenter writes them, and as older libraries did: `key='value'`, `key=value`, `key:value`,
# joined by commas. A comment that is anything else is prose, and counts for nothing; a pair whose
# key or value cannot be a tag is ignored and counted.

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
        raw = pair["quoted"].replace(rb"\'", b"'") if pair["bare"] is None else pair["bare"]
        found.append((unquote_to_bytes(pair["key"]), unquote_to_bytes(raw)))
        at = pair.end()
        if at == len(comment):
            return found
        if comment[at : at + 1] != b",":
            break
        at += 1
    return []


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


# --- fingerprint ---------------------------------------------------------------------------------

# A statement's shape as a number, the same on every server: what it is without its literals.
#
# SELECT * FROM "T" WHERE id IN (1, 2, 3) -- why   ──►   select * from "T" where id in ( ? )
#
# EXPLAIN ANALYZE has the shape of the statement that it runs.

FINGERPRINT_SEED = 3
_EXPLAINS = {Dialect.POSTGRES: (b"explain",), Dialect.MYSQL: (b"explain", b"describe", b"desc")}
_ANALYZES = (b"analyze", b"analyse")
_OPTIONS = (*_ANALYZES, b"verbose", b"extended", b"partitions", b"format")
_QUERIES = (b"(", b"select", b"with", b"values", b"table")
_TABLES = (b"table", b"local", b"no_write_to_binlog")


def fingerprint(text: bytes, dialect: Dialect) -> int:
    return hg_hash(FINGERPRINT_SEED, shape(text, dialect))


def shape(text: bytes, dialect: Dialect) -> bytes:
    """What is hashed: each token and a space."""
    read = [_token(piece) for piece in tokens(text, dialect)]
    run = read[_behind_explain(read, dialect) :]
    while run and run[-1] == b";":
        run.pop()
    values = _one_of_many(run, [b"?"])
    rows = _one_of_many(values, [b"(", b"?", b")"])
    return b"".join(token + b" " for token in rows)


def _token(piece: SqlPiece) -> bytes:
    if piece.kind == LITERAL:
        return b"?"
    return piece.text.lower() if piece.kind == WORD else piece.text


def _behind_explain(read: Sequence[bytes], dialect: Dialect) -> int:
    """Where the statement begins that an EXPLAIN ANALYZE, or MariaDB's ANALYZE, runs; 0: it is
    none of them."""
    at, first = 1, read[0] if read else b""
    if first in _EXPLAINS[dialect] and len(read) > 1 and read[1] == b"(":
        at = _behind_bracket(read)
        analyzes = read[2:3] and read[2] not in _QUERIES and _has(read[2:at], _ANALYZES)
        return at if analyzes and at < len(read) else 0
    while at < len(read) and read[at] in _OPTIONS:
        at += 3 if read[at] == b"format" and read[at + 1 : at + 2] == [b"="] else 1
    if dialect is Dialect.MYSQL and first == b"analyze":
        return at if at < len(read) and read[at] not in _TABLES else 0
    analyzes = first in _EXPLAINS[dialect] and _has(read[1:at], _ANALYZES)
    return at if analyzes and at < len(read) else 0


def _has(read: Sequence[bytes], words: Iterable[bytes]) -> bool:
    return any(word in read for word in words)


def _behind_bracket(read: Sequence[bytes]) -> int:
    depth = 0
    for at, token in enumerate(read):
        depth += (token == b"(") - (token == b")")
        if token == b")" and depth == 0:
            return at + 1
    return len(read)


def _one_of_many(tokens: Iterable[bytes], unit: list[bytes]) -> list[bytes]:
    """`unit , unit , unit` comes to one `unit`: lists of any length have one shape."""
    again = [b",", *unit]
    kept: list[bytes] = []
    for token in tokens:
        kept.append(token)
        if kept[-len(again) - len(unit) :] == unit + again:
            del kept[-len(again) :]
    return kept
