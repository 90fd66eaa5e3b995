"""The reverse leaky bucket, as one number: the time at which it will be empty.

    debt(t) = max(empty_at − t, 0)      charge: empty_at = max(empty_at, now) + the time it takes
                                                           the rate to drain the cost

No task drains it: it drains by being read later. Its own unit is the time in which its rate drains
a cost; `drain_ns` and `cpu_ns` convert there and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.budgets.model import NEVER

WHOLE_MPCT = 100_000
"""100 %, in thousandths of a percent."""
_NS = 1_000_000_000
_SCALE = WHOLE_MPCT * 1000
"""cost × this / (rate × CPUs in thousandths): the rate drains rate/100 % of the CPUs."""
FAR_NS = 2**62
"""No cost takes longer to drain: sums stay within 64 bits."""


def server_ns(amount_mpcts: int, cpus_milli: int) -> int:
    """Whole-server percent-seconds as CPU time: 100 %·s are one second of every CPU."""
    return amount_mpcts * cpus_milli * (_NS // WHOLE_MPCT // 1000)


def drain_ns(cost_ns: int, rate_mpct: int, cpus_milli: int) -> int:
    """How long the rate takes to drain a cost. Rounded up: a bucket never has less debt than it was
    charged."""
    return min(-(-cost_ns * _SCALE // (rate_mpct * cpus_milli)), FAR_NS)


def cpu_ns(drains_in_ns: int, rate_mpct: int, cpus_milli: int) -> int:
    return min(drains_in_ns * rate_mpct * cpus_milli // _SCALE, FAR_NS)


def size_ns(capacity_mpcts: int, rate_mpct: int) -> int:
    """The bucket's size in its own time: how long a full one takes to drain."""
    return capacity_mpcts * _NS // rate_mpct


def debt_ns(empty_at_ns: int, now_ns: int) -> int:
    return max(empty_at_ns - now_ns, 0)


def wait_ns(owed: int, asked: int, size: int) -> int:
    """Until it fits; 0: now. NEVER: it is larger than the whole bucket."""
    if asked > size:
        return NEVER
    return max(owed + asked - size, 0)


@dataclass(frozen=True, slots=True)
class Bucket:
    key: int
    budget_key: int
    rate_mpct: int = 0
    """By which `empty_at_ns` is reckoned; 0: it has no debt, workers are counted."""
    epoch: int = 0
    label: bytes = b""
    empty_at_ns: int = 0
    refunded_ns: int = 0
    """Ever, in the bucket's own time."""
    statements: int = 0
    """Not at their end yet, idle cursors among them: they pin it."""
    workers: int = 0
    """Running under it now."""
    admitted: int = 0

    @property
    def is_own(self) -> bool:
        """The budget's one bucket, and not that of a value that a client may have made up."""
        return self.key == self.budget_key


def charged(bucket: Bucket, drains_in_ns: int, now_ns: int) -> Bucket:
    after_ns = max(bucket.empty_at_ns, now_ns) + drains_in_ns
    return replace(bucket, empty_at_ns=min(after_ns, 2 * FAR_NS))


@dataclass(frozen=True, slots=True)
class Charge:
    """What a statement was charged, for the settlement."""

    drains_in_ns: int
    after_ns: int
    """`empty_at_ns` right after the charge."""
    refunded_ns: int
    """The bucket's, right before it."""


def refunded(bucket: Bucket, charge: Charge, cheaper_ns: int, now_ns: int) -> Bucket:
    """Give back what was charged too much, but never more than what of that very charge cannot
    have drained yet: so the debt is never below the truth, and the long-run limit holds for any
    pattern of arrivals."""
    since = bucket.refunded_ns - charge.refunded_ns
    remaining = min(max(charge.after_ns - since - now_ns, 0), charge.drains_in_ns)
    back = min(cheaper_ns, remaining)
    return replace(
        bucket, empty_at_ns=bucket.empty_at_ns - back, refunded_ns=bucket.refunded_ns + back
    )


def forgiven(bucket: Bucket, epoch: int, now_ns: int) -> Bucket:
    """Counts as refunded: what was charged before is gone, and must not be given back again out
    of what others are charged later."""
    owed = debt_ns(bucket.empty_at_ns, now_ns)
    return replace(bucket, epoch=epoch, empty_at_ns=now_ns, refunded_ns=bucket.refunded_ns + owed)


def rescaled(bucket: Bucket, rate_mpct: int, now_ns: int) -> Bucket:
    """The same debt under another rate. What the time is set back by counts as refunded, too:
    charges from before end earlier now."""
    owed = debt_ns(bucket.empty_at_ns, now_ns)
    same = min(owed * bucket.rate_mpct // rate_mpct, FAR_NS)
    return replace(
        bucket,
        rate_mpct=rate_mpct,
        empty_at_ns=now_ns + same,
        refunded_ns=bucket.refunded_ns + max(owed - same, 0),
    )


def under_terms(bucket: Bucket, rate_mpct: int, epoch: int, now_ns: int) -> Bucket:
    """As the policy in force has it, which may have changed since the bucket was last charged.
    A rate of 0: no debt counts, and what there is stays."""
    if bucket.epoch != epoch:
        bucket = forgiven(bucket, epoch, now_ns)
    if rate_mpct in (0, bucket.rate_mpct):
        return bucket
    return rescaled(bucket, rate_mpct, now_ns)
