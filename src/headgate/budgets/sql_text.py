"""A statement's text in pieces: comments, literals, names.   text ──► tags, fingerprint

No grammar: just enough of both dialects to know what is a literal, what is a comment, and where
each ends. What is never closed goes on to the end of the text. A number ends where its digits do:
servers take `1.INTO` and `1e5INTO` (MySQL), `1INTO` (Postgres before 15) for a number and a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from headgate.budgets.ask import Dialect

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
