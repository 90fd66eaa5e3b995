"""What a commit to a fleet's store may hold: etcd's default limits, for every store.

A store that accepted more would accept in tests, or on one machine, what fails in the fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.keyvalue import Compare, Put

MAX_COMMIT_OPS = 128
"""etcd's --max-txn-ops; compares and puts are counted separately."""
MAX_COMMIT_BYTES = 1024 * 1024
"""etcd's --max-request-bytes is 1.5 MiB; its own frame, and base64, have to fit in as well."""


def check_commit(compares: Sequence[Compare], puts: Sequence[Put]) -> None:
    """ValueError with what is too large: a fault of the caller, not of the store."""
    most = max(len(compares), len(puts))
    if most > MAX_COMMIT_OPS:
        raise ValueError(f"{most} keys in one commit, at most {MAX_COMMIT_OPS} allowed")
    if not all(put.key for put in puts) or not all(compare.key for compare in compares):
        raise ValueError("a commit names an empty key")
    if len({put.key for put in puts}) < len(puts):
        raise ValueError("a commit puts the same key twice")
    size_bytes = sum(len(put.key.encode()) + len(put.value or b"") for put in puts)
    if size_bytes > MAX_COMMIT_BYTES:
        raise ValueError(f"{size_bytes} bytes in one commit, at most {MAX_COMMIT_BYTES} allowed")
