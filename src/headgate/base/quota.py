"""How often something may be done: by each key, such as an address, and by all together. Pure but
for what it remembers; time is an argument."""

from __future__ import annotations

from typing import NamedTuple

MAX_KEYS = 4096
ROUNDING_S = 1e-6
_TOGETHER = ""
"""Keys beyond MAX_KEYS share this one."""


class Rate(NamedTuple):
    per_s: float
    """Requests a second over a long time."""
    burst: int
    """Requests at once, after a pause."""


class Quota:
    def __init__(self, each: Rate, total: Rate, *, max_keys: int = MAX_KEYS) -> None:
        self._each = each
        self._total = total
        self._max_keys = max_keys
        self._paid_until: dict[str, float] = {}
        """Monotonic, by key: when what was taken is paid off. Keys in the past count as
        missing."""
        self._all_paid_until = 0.0

    def take(self, key: str, now_s: float) -> float:
        """0: granted and counted. Else the seconds to wait before the next try; nothing counted."""
        key = self._place(key, now_s)
        mine = max(now_s, self._paid_until.get(key, now_s))
        alls = max(now_s, self._all_paid_until)
        wait_s = max(_wait_s(self._each, mine, now_s), _wait_s(self._total, alls, now_s))
        if wait_s > 0:
            return wait_s
        self._paid_until[key] = mine + 1 / self._each.per_s
        self._all_paid_until = alls + 1 / self._total.per_s
        return 0.0

    def _place(self, key: str, now_s: float) -> str:
        if key in self._paid_until or len(self._paid_until) < self._max_keys:
            return key
        self._paid_until = {k: until for k, until in self._paid_until.items() if until > now_s}
        return key if len(self._paid_until) < self._max_keys else _TOGETHER


def _wait_s(rate: Rate, paid_until: float, now_s: float) -> float:
    wait_s = paid_until - now_s - (rate.burst - 1) / rate.per_s
    return wait_s if wait_s > ROUNDING_S else 0.0
