"""When a connection checks: before a transaction begins, and not again until it is over.

`every` is the size of a batch: how many transactions one OK is for. Small and quick transactions
may share one; a batch that takes seconds should not, because an OK is about the present moment.
"""

from __future__ import annotations

import re

from headgate.errors import Fault, InvalidSettings

# Behind comments, as of a program that tags its statements at their head.
_VERB = re.compile(r"(?:[\s(;]|/\*.*?\*/|--[^\n]*\n)*([A-Za-z]+)", re.DOTALL)
_BEGINS = frozenset({"BEGIN", "START"})
_ENDS = frozenset({"COMMIT", "ROLLBACK", "END", "ABORT"})


class TransactionBatch:
    """Of one connection: says before which transactions to check."""

    __slots__ = ("_every", "_left")

    def __init__(self, every: int = 1) -> None:
        self._every = checked_every(every)
        self._left = 0

    def is_due(self) -> bool:
        """Counts the transaction that is about to begin."""
        due = self._left == 0
        self._left = (self._every if due else self._left) - 1
        return due

    def rejected(self) -> None:
        """The wait failed: the next transaction has to check again."""
        self._left = 0


def checked_every(every: int) -> int:
    if every < 1:
        raise InvalidSettings([Fault("every", f"a batch is at least 1 transaction, not {every!r}")])
    return every


def verb_of(statement: str) -> str:
    found = _VERB.match(statement)
    return found[1].upper() if found else ""


def begins(statement: str) -> bool:
    return verb_of(statement) in _BEGINS


def ends(statement: str) -> bool:
    """`ROLLBACK TO` a savepoint ends nothing."""
    verb = verb_of(statement)
    return verb in _ENDS and not (verb == "ROLLBACK" and " TO " in f" {statement.upper()} ")
