"""A statement's shape as a number, the same on every server: what it is without its literals.

SELECT * FROM "T" WHERE id IN (1, 2, 3) -- why   ──►   select * from "T" where id in ( ? )

EXPLAIN ANALYZE has the shape of the statement that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.budgets.ask import Dialect
from headgate.budgets.hashes import hg_hash
from headgate.budgets.sql_text import LITERAL, WORD, SqlPiece, tokens

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
