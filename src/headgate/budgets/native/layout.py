"""The structures of native/headgate.h, and whether a library has the same.

Words that C declares atomic are plain here: a reader sees each word whole, and two words maybe of
different moments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import (
    Structure,
    c_bool,
    c_char,
    c_double,
    c_float,
    c_int16,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
)
from typing import Any

from headgate.budgets.cost import SHAPES
from headgate.budgets.identity import IDENTITY_BYTES
from headgate.budgets.model import MAX_MATCHES

REGION_MAGIC = b"HGREGION"
REGION_FORMAT = 3
POLICY_MAGIC = b"HGPOLICY"
LIMITS = 4
NO_BUCKET = 2**32 - 1
TAKEN_KEY = 1
"""Up to this a key is none: the place is free, or is being filled."""
LABEL_BYTES = 47
PAGE_BYTES = 4096


class HgLine(Structure):
    """budgets/cost.py says what they are."""

    _fields_ = [
        ("variance", c_float),
        ("shape", c_uint16),
        ("calls", c_uint8),
        ("reserved", c_uint8),
        ("plan_cost", c_float),
        ("cpu", c_float),
        ("spread", c_float),
        ("common", c_float),
        ("bends", c_int16 * 4),
    ]


class HgCost(Structure):
    """An estimate, as hg_estimate returns it."""

    _fields_ = [("mean_ns", c_uint64), ("p90_ns", c_uint64)]


class HgSizes(Structure):
    _fields_ = [
        ("seats", c_uint32),
        ("budgets", c_uint32),
        ("buckets", c_uint32),
        ("patterns", c_uint32),
        ("policy_bytes", c_uint32),
        ("traces", c_uint32),
        ("clients", c_uint32),
    ]


class HgRegion(Structure):
    _fields_ = [
        ("magic", c_char * 8),
        ("format", c_uint32),
        ("cpus_milli", c_uint32),
        ("length", c_uint64),
        ("sizes", HgSizes),
        ("workers", c_uint32),
        ("seats_at", c_uint64),
        ("counts_at", c_uint64),
        ("bucket_keys_at", c_uint64),
        ("bucket_locks_at", c_uint64),
        ("buckets_at", c_uint64),
        ("patterns_at", c_uint64),
        ("traces_at", c_uint64),
        ("clients_at", c_uint64),
        ("areas_at", c_uint64 * 2),
        ("end_at", c_uint64),
        ("started_ns", c_uint64),
        ("started_ms", c_uint64),
        ("area", c_uint32),
        ("publishing", c_uint32),
        ("version", c_uint64),
        ("crc", c_uint32),
        ("enabled", c_uint32),
        ("published_ms", c_int64),
        ("health", c_uint32),
        ("rejected_policies", c_uint32),
        ("health_until_ms", c_int64),
        ("secret", c_uint64),
        ("line_end", c_uint8 * 40),
        ("host", HgLine),
        ("pattern_evictions", c_uint64),
        ("counts_full", c_uint64),
        ("traced", c_uint64),
        ("rejection", c_char * 128),
        ("end", c_uint8 * 8),
    ]


class HgSeat(Structure):
    _fields_ = [
        ("using_area", c_uint32),
        ("pid", c_uint32),
        ("version", c_uint64),
        ("crc", c_uint32),
        ("reserved", c_uint32),
        ("worker_ns", c_uint64),
        ("statements", c_uint64),
        ("matched", c_uint64),
        ("ignored_tags", c_uint64),
        ("duplicate_tags", c_uint64),
        ("left_out", c_uint64),
        ("bypassed", c_uint64),
        ("spare", c_uint64 * 6),
    ]


class HgCount(Structure):
    _fields_ = [
        ("key", c_uint64),
        ("admitted", c_uint64),
        ("estimated_ns", c_uint64),
        ("charged_ns", c_uint64),
        ("passed", c_uint64),
        ("sleeping", c_uint64),
        ("forgiven_ns", c_uint64),
        ("evicted", c_uint64),
        ("warned", c_uint64 * LIMITS),
        ("blocked", c_uint64 * LIMITS),
        ("delayed", c_uint64),
        ("delayed_ns", c_uint64),
        ("unpinned", c_uint64),
        ("last_violation_ms", c_int64),
        ("wall_ns", c_uint64),
        ("spare", c_uint64 * 3),
        ("name", c_char * 64),
    ]


class HgBucket(Structure):
    _fields_ = [
        ("empty_at_ns", c_uint64),
        ("refunded_ns", c_uint64),
        ("workers", c_uint32),
        ("statements", c_uint32),
        ("rate_mpct", c_uint32),
        ("epoch", c_uint32),
        ("budget_key", c_uint64),
        ("label_length", c_uint32),
        ("reserved", c_uint32),
        ("admitted", c_uint64),
        ("refunding_ns", c_uint64),
        ("label", c_uint8 * 64),
    ]


class HgPattern(Structure):
    _fields_ = [
        ("key", c_uint64),
        ("calls", c_uint32),
        ("error", c_float),
        ("cpu_ns", c_uint64),
        ("last_ns", c_uint64),
        ("query_id", c_uint64),
        ("database", c_uint64),
        ("wall_ns", c_uint64),
        ("reserved", c_uint64),
        ("whole", HgLine),
        ("shapes", HgLine * SHAPES),
    ]


class HgTrace(Structure):
    _fields_ = [
        ("stamp", c_uint64),
        ("wall_ms", c_int64),
        ("query_id", c_uint64),
        ("fingerprint", c_uint64),
        ("estimate_ns", c_uint64),
        ("p90_ns", c_uint64),
        ("actual_ns", c_uint64),
        ("wall_ns", c_uint64),
        ("plan_cost", c_double),
        ("weight", c_float),
        ("budget", c_uint32),
        ("workers", c_uint16),
        ("verdict", c_uint8),
        ("limit", c_uint8),
        ("flags", c_uint8),
        ("family", c_uint8),
        ("address", c_uint8 * 16),
        ("username_length", c_uint8),
        ("database_length", c_uint8),
        ("application_length", c_uint8),
        ("spare", c_uint8),
        ("tags_length", c_uint16),
        ("tags_left_out", c_uint16),
        ("text", c_uint8 * 402),
    ]


class HgSection(Structure):
    _fields_ = [("offset", c_uint32), ("count", c_uint32)]


class HgPolicyHead(Structure):
    """As far as the budgets."""

    _fields_ = [
        ("magic", c_char * 8),
        ("format", c_uint32),
        ("crc", c_uint32),
        ("length", c_uint64),
        ("version", c_uint64),
        ("flags", c_uint32),
        ("system_keys", c_uint32),
        ("budgets", HgSection),
    ]


class HgBudget(Structure):
    _fields_ = [
        ("key", c_uint64),
        ("name", HgSection),
        ("set", c_uint32),
        ("rate_mpct", c_uint32),
        ("capacity_mpcts", c_uint32),
        ("burst_mpcts", c_uint32),
        ("concurrency_mpct", c_uint32),
        ("max_workers", c_uint32),
        ("warning_mpct", c_uint32),
        ("epoch", c_uint32),
        ("max_delay_ms", c_uint32),
        ("penalty_ms", c_uint32),
        ("max_delayed", c_uint32),
        ("mode", c_uint8),
        ("flags", c_uint8),
        ("reserved", c_uint16),
        ("expires_at_ms", c_int64),
    ]


class HgTally(Structure):
    _fields_ = [
        ("key", c_uint64),
        ("admitted", c_uint64),
        ("by_budget", c_uint64),
        ("by_rule", c_uint64),
        ("passed", c_uint64),
        ("last_budget", c_uint64),
        ("spare", c_uint64 * 2),
        ("name", c_char * 128),
    ]


class HgIdentity(Structure):
    """As budgets/identity.py writes it."""

    _fields_ = [("words", c_uint32 * (IDENTITY_BYTES // 4))]


SET_CAPACITY = 2
"""Bit of HgBudget.set."""


class HgMatch(Structure):
    _fields_ = [
        ("budget", c_uint32),
        ("rule", c_uint32),
        ("bucket", c_uint64),
        ("label_length", c_uint8),
        ("label", c_uint8 * LABEL_BYTES),
    ]


class HgMatches(Structure):
    _fields_ = [
        ("count", c_uint32),
        ("left_out", c_uint32),
        ("ignored_tags", c_uint32),
        ("duplicate_tags", c_uint32),
        ("probes", c_uint32),
        ("client", c_uint32),
        ("gate", c_uint32),
        ("reserved", c_uint32),
        ("at", HgMatch * MAX_MATCHES),
    ]


class HgAsk(Structure):
    _fields_ = [
        ("now_ns", c_uint64),
        ("wall_ms", c_int64),
        ("plan_cost", c_double),
        ("cost_ns", c_uint64),
        ("p90_ns", c_uint64),
        ("pattern", c_uint64),
        ("query_id", c_uint64),
        ("database", c_uint64),
        ("workers", c_uint32),
        ("flags", c_uint32),
        ("shape", c_uint32),
        ("reserved", c_uint32),
    ]


class HgAnswer(Structure):
    _fields_ = [
        ("verdict", c_uint32),
        ("limit", c_uint8 * MAX_MATCHES),
        ("threshold", c_uint8 * MAX_MATCHES),
        ("match", c_uint32),
        ("decided_by", c_uint8),
        ("passed", c_bool),
        ("estimate_ns", c_uint64),
        ("p90_ns", c_uint64),
        ("used", c_uint64),
        ("bound", c_uint64),
        ("retry_ns", c_uint64),
    ]


class HgHoldingOne(Structure):
    _fields_ = [
        ("bucket", c_uint64),
        ("budget_key", c_uint64),
        ("charged_ns", c_uint64),
        ("after_ns", c_uint64),
        ("refunded_ns", c_uint64),
        ("index", c_uint32),
        ("rate_mpct", c_uint32),
        ("counted", c_bool),
        ("charged", c_bool),
    ]


class HgHolding(Structure):
    _fields_ = [
        ("count", c_uint32),
        ("workers", c_uint32),
        ("flags", c_uint32),
        ("shape", c_uint32),
        ("estimate_ns", c_uint64),
        ("p90_ns", c_uint64),
        ("wall_ns", c_uint64),
        ("plan_cost", c_double),
        ("pattern", c_uint64),
        ("query_id", c_uint64),
        ("database", c_uint64),
        ("at", HgHoldingOne * MAX_MATCHES),
    ]


# In the order of hg_layout (native/region.c): sizes, then offsets of fields.
_SIZES: tuple[type[Structure], ...] = (
    HgRegion,
    HgSizes,
    HgSeat,
    HgCount,
    HgBucket,
    HgPattern,
    HgLine,
    HgTrace,
    HgMatches,
    HgAsk,
    HgAnswer,
    HgHolding,
    HgHoldingOne,
    HgBudget,
    HgTally,
    HgIdentity,
)
_OFFSETS: tuple[tuple[type[Structure], str], ...] = (
    (HgRegion, "sizes"),
    (HgRegion, "seats_at"),
    (HgRegion, "area"),
    (HgRegion, "health"),
    (HgRegion, "secret"),
    (HgRegion, "host"),
    (HgRegion, "rejection"),
    (HgSeat, "version"),
    (HgSeat, "left_out"),
    (HgCount, "warned"),
    (HgCount, "blocked"),
    (HgCount, "last_violation_ms"),
    (HgCount, "name"),
    (HgBucket, "workers"),
    (HgBucket, "budget_key"),
    (HgBucket, "label"),
    (HgPattern, "calls"),
    (HgPattern, "query_id"),
    (HgPattern, "shapes"),
    (HgTrace, "plan_cost"),
    (HgTrace, "text"),
    (HgMatches, "at"),
    (HgAsk, "workers"),
    (HgAnswer, "match"),
    (HgAnswer, "estimate_ns"),
    (HgHolding, "at"),
    (HgHoldingOne, "index"),
    (HgHoldingOne, "charged"),
    (HgBudget, "capacity_mpcts"),
    (HgPolicyHead, "budgets"),
)


Layout = tuple[tuple[str, int], ...]


def laid_out(
    sizes: Iterable[type[Structure]], offsets: Iterable[tuple[type[Structure], str]]
) -> Layout:
    """What a library's own layout function answers to 0, 1, 2, …"""
    told = [(f"size of {kind.__name__}", ctypes.sizeof(kind)) for kind in sizes]
    places = [
        (f"place of {kind.__name__}.{name}", int(getattr(kind, name).offset))
        for kind, name in offsets
    ]
    return (*told, *places, ("end", 0))


def compared(ask: Any, layout: Layout) -> list[str]:
    """Where the structures behind a library's layout function are not these."""
    ask.argtypes = [c_uint32]
    ask.restype = c_size_t
    return [
        f"{what} is {found}, not {size}"
        for which, (what, size) in enumerate(layout)
        if (found := ask(which)) != size
    ]


def expected() -> Layout:
    """What hg_layout answers to 0, 1, 2, …"""
    return laid_out(_SIZES, _OFFSETS)


def misfits(library: ctypes.CDLL) -> list[str]:
    """Where the library's structures are not these."""
    return compared(library.hg_layout, expected())
