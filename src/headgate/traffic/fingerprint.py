"""A statement's shape as a number, the same on every server: what it is without its literals.

SELECT * FROM "T" WHERE id IN (1, 2, 3) -- why   ──►   select * from "T" where id in ( ? )
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.traffic.ask import Dialect
from headgate.traffic.hashes import hg_hash
from headgate.traffic.sql_text import COMMENT, LITERAL, SPACE, WORD, pieces

FINGERPRINT_SEED = 3


def fingerprint(text: bytes, dialect: Dialect) -> int:
    return hg_hash(FINGERPRINT_SEED, shape(text, dialect))


def shape(text: bytes, dialect: Dialect) -> bytes:
    """What is hashed: each token and a space."""
    tokens = [
        _token(piece.kind, piece.text)
        for piece in pieces(text, dialect)
        if piece.kind not in (SPACE, COMMENT)
    ]
    while tokens and tokens[-1] == b";":
        tokens.pop()
    values = _one_of_many(tokens, [b"?"])
    rows = _one_of_many(values, [b"(", b"?", b")"])
    return b"".join(token + b" " for token in rows)


def _token(kind: str, text: bytes) -> bytes:
    if kind == LITERAL:
        return b"?"
    return text.lower() if kind == WORD else text


def _one_of_many(tokens: Iterable[bytes], unit: list[bytes]) -> list[bytes]:
    """`unit , unit , unit` comes to one `unit`: lists of any length have one shape."""
    again = [b",", *unit]
    kept: list[bytes] = []
    for token in tokens:
        kept.append(token)
        if kept[-len(again) - len(unit) :] == unit + again:
            del kept[-len(again) :]
    return kept
