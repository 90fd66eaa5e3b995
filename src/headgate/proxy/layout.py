"""The structures and functions of relay/relay.h, and whether a library has the same.

Words that C declares atomic are plain here, as in budgets/native/layout.py: a write from Python
writes the whole word, and what belongs together goes through a function of the library.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from headgate.budgets.native.layout import (
    HgHolding,
    HgIdentity,
    HgSizes,
    Layout,
    compared,
    laid_out,
)

STATE_MAGIC = b"HGRELAYS"
STATE_FORMAT = 2
MAX_THREADS = 64
MAX_TARGETS = 64
MAX_TARGET_TLS = 16
MAX_LISTENERS = 16
MAX_SOURCES = 16
MAX_TRUSTS = 16
MAX_TRUSTED_USERS = 8
MAX_SECRET_BYTES = 64
CAUSES = 8
REASON_BYTES = 200
EVENT_TEXT_BYTES = 8192
SOCKADDR_BYTES = 128
PATH_BYTES = 1024

EVENT_CLIENT, EVENT_PATTERN, EVENT_BLOCKED, EVENT_DELAYED = 1, 2, 3, 4
EVENT_WARNED, EVENT_SESSION, EVENT_DRAINED = 5, 6, 7
GATE_WRITES_ONLY, GATE_PACED, GATE_EXEMPT = 1, 2, 4
TARGET_PRIMARY, TARGET_REPLICA = 1, 2


class HrSettings(Structure):
    _fields_ = [
        ("protocol", c_uint32),
        ("threads", c_uint32),
        ("max_sessions", c_uint32),
        ("max_sessions_per_user", c_uint32),
        ("startup_timeout_ms", c_uint32),
        ("connect_timeout_ms", c_uint32),
        ("dry_run", c_uint32),
        ("idle_timeout_ms", c_uint32),
        ("max_buffer_bytes", c_uint64),
        ("tcp_keepalive_s", c_uint32),
        ("max_logins_per_address", c_uint32),
    ]


class HrTlsSettings(Structure):
    _fields_ = [
        ("mode", c_uint32),
        ("cert", c_char * PATH_BYTES),
        ("key", c_char * PATH_BYTES),
        ("ca", c_char * PATH_BYTES),
        ("name", c_char * 256),
    ]


class HrTarget(Structure):
    _fields_ = [
        ("id", c_uint64),
        ("roles", c_uint32),
        ("weight", c_uint32),
        ("address_length", c_uint32),
        ("tls", c_uint32),
        # sockaddr_storage: 128 bytes, aligned to 8.
        ("address", c_uint64 * (SOCKADDR_BYTES // 8)),
        ("name", c_char * 64),
    ]


class HrTargets(Structure):
    _fields_ = [
        ("count", c_uint32),
        ("tls_count", c_uint32),
        ("replicas_or_primary", c_uint32),
        ("reserved", c_uint32),
        ("target", HrTarget * MAX_TARGETS),
        ("tls", HrTlsSettings * MAX_TARGET_TLS),
    ]


class HrGate(Structure):
    _fields_ = [
        ("sequence", c_uint32),
        ("ratio", c_uint32),
        ("action", c_uint8),
        ("ignores_priority", c_uint8),
        ("cause", c_uint8),
        ("flags", c_uint8),
        ("max_delay_ms", c_uint32),
        ("max_delayed", c_uint32),
        ("delay_ms", c_uint32),
        ("retry_ms", c_uint32),
        ("until_ms", c_int64),
        ("reason", c_char * REASON_BYTES),
    ]


class HrClient(Structure):
    _fields_ = [
        ("key", c_uint64),
        ("state", c_uint32),
        ("length", c_uint32),
        ("identity", c_char * 128),
        ("last_ns", c_uint64),
        ("statements", c_uint64),
        ("admitted", c_uint64),
        ("warned", c_uint64),
        ("delayed", c_uint64),
        ("delayed_ns", c_uint64),
        ("blocked", c_uint64 * CAUSES),
        ("passed", c_uint64),
        ("wall_ns", c_uint64),
        ("errors", c_uint64),
        ("reported_admitted", c_uint64),
        ("reported_blocked", c_uint64 * CAUSES),
        ("waiting", c_uint32),
        ("running", c_uint32),
        ("kept", c_uint32),
        ("reserved", c_uint32),
        ("spare", c_uint64 * 4),
        ("gate", HrGate),
    ]


class HrRelease(Structure):
    _fields_ = [
        ("empty_at_ns", c_uint64),
        ("ns_per_unit", c_uint64),
        ("burst_ns", c_uint64),
        ("taken", c_uint64),
        ("limited", c_uint64),
        ("action", c_uint32),
        ("max_delay_ms", c_uint32),
    ]


class HrRunning(Structure):
    _fields_ = [
        ("pid", c_uint32),
        ("next", c_uint32),
        ("client", c_uint32),
        ("flags", c_uint32),
        ("started_ns", c_uint64),
        ("wall_ms", c_uint64),
        ("fingerprint", c_uint64),
        ("holding", HgHolding),
    ]


class HrSizes(Structure):
    _fields_ = [
        ("clients", c_uint32),
        ("runnings", c_uint32),
        ("plans", c_uint32),
        ("reserved", c_uint32),
    ]


class HrPlan(Structure):
    _fields_ = [("pattern", c_uint64), ("cost", c_double)]


class HrState(Structure):
    _fields_ = [
        ("magic", c_char * 8),
        ("format", c_uint32),
        ("adding", c_uint32),
        ("length", c_uint64),
        ("sizes", HrSizes),
        ("clients_at", c_uint64),
        ("runnings_at", c_uint64),
        ("plans_at", c_uint64),
        ("lost", c_uint32),
        ("enabled", c_uint32),
        ("clients_full", c_uint64),
        ("runnings_full", c_uint64),
        ("reported_ns", c_uint64),
        ("release", HrRelease),
    ]


THREAD_COUNTS = (
    *("accepted", "established", "closed", "rejected_sessions", "failed_startups"),
    *("failed_connects", "client_bytes", "server_bytes", "statements", "prepared", "decided"),
    *("truncated_texts", "unidentified", "cancels", "held", "protocol_errors", "tls_sessions"),
    *("out_of_buffers", "sessions", "idle_sessions", "buffers_used_bytes", "rounds"),
    *("longest_round_ns", "lost_events", "untrusted_tags", "unkept_texts"),
)


class HrThreadCounts(Structure):
    _fields_ = [*((name, c_uint64) for name in THREAD_COUNTS), ("spare", c_uint64 * 7)]


class HrEvent(Structure):
    _fields_ = [
        ("kind", c_uint32),
        ("number", c_uint32),
        ("pattern", c_uint64),
        ("took_ns", c_uint64),
        ("wall_ms", c_int64),
        ("by", c_uint8),
        ("in_transaction", c_uint8),
        ("user_length", c_uint16),
        ("database_length", c_uint16),
        ("budget_length", c_uint16),
        ("reason_length", c_uint16),
        ("text_length", c_uint16),
        ("text_whole", c_uint8),
        ("parameters", c_uint8),
        ("reserved", c_uint8 * 2),
        ("left_out", c_uint32),
        ("text", c_uint8 * EVENT_TEXT_BYTES),
    ]


class HrSessionView(Structure):
    _fields_ = [
        ("id", c_uint64),
        ("target", c_uint64),
        ("since_ns", c_uint64),
        ("statement_since_ns", c_uint64),
        ("server_process", c_uint32),
        ("phase", c_uint8),
        ("in_transaction", c_uint8),
        ("tls_client", c_uint8),
        ("tls_server", c_uint8),
        ("family", c_uint8),
        ("reserved", c_uint8 * 7),
        ("address", c_uint8 * 16),
        ("port", c_uint32),
        ("username", c_char * 64),
        ("database", c_char * 64),
        ("application", c_char * 64),
        ("client", c_char * 64),
    ]


# In the order of hr_layout (relay/layout.c): sizes, then offsets of fields.
_SIZES: tuple[type[Structure], ...] = (
    HrSettings,
    HgIdentity,
    HrTlsSettings,
    HrTarget,
    HrTargets,
    HrGate,
    HrClient,
    HrRelease,
    HrRunning,
    HrSizes,
    HrPlan,
    HrState,
    HrThreadCounts,
    HrEvent,
    HrSessionView,
)
_OFFSETS: tuple[tuple[type[Structure], str], ...] = (
    (HrSettings, "dry_run"),
    (HrSettings, "max_buffer_bytes"),
    (HrSettings, "max_logins_per_address"),
    (HrTlsSettings, "name"),
    (HrTarget, "address"),
    (HrTarget, "name"),
    (HrTargets, "target"),
    (HrTargets, "tls"),
    (HrGate, "action"),
    (HrGate, "until_ms"),
    (HrGate, "reason"),
    (HrClient, "identity"),
    (HrClient, "last_ns"),
    (HrClient, "blocked"),
    (HrClient, "reported_admitted"),
    (HrClient, "waiting"),
    (HrClient, "gate"),
    (HrRelease, "action"),
    (HrRunning, "holding"),
    (HrState, "sizes"),
    (HrState, "clients_at"),
    (HrState, "lost"),
    (HrState, "release"),
    (HrThreadCounts, "statements"),
    (HrThreadCounts, "untrusted_tags"),
    (HrEvent, "by"),
    (HrEvent, "text"),
    (HrSessionView, "address"),
    (HrSessionView, "username"),
    (HrSessionView, "client"),
)


def expected() -> Layout:
    """What hr_layout answers to 0, 1, 2, …"""
    return laid_out(_SIZES, _OFFSETS)


def misfits(library: ctypes.CDLL) -> list[str]:
    """Where the library's structures are not these."""
    return compared(library.hr_layout, expected())


_ERROR: list[Any] = [c_char_p, c_size_t]
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "hg_region_bytes": (c_size_t, [POINTER(HgSizes)]),
    "hg_region_init": (
        c_char_p,
        [c_void_p, c_size_t, POINTER(HgSizes), c_uint32, c_uint32, c_uint64, c_int64],
    ),
    "hg_region_keyed": (None, [c_void_p, c_uint64]),
    "hg_region_check": (c_char_p, [c_void_p, c_size_t]),
    "hg_publish": (c_char_p, [c_void_p, c_char_p, c_size_t, c_bool, c_int64]),
    "hg_publish_again": (c_bool, [c_char_p]),
    "hg_tell_health": (None, [c_void_p, c_bool, c_int64]),
    "hr_state_bytes": (c_size_t, [POINTER(HrSizes)]),
    "hr_state_init": (c_char_p, [c_void_p, c_size_t, POINTER(HrSizes)]),
    "hr_state_check": (c_char_p, [c_void_p, c_size_t]),
    "hr_settle_dead": (c_uint32, [c_void_p, c_void_p, c_uint32, c_uint64]),
    "hr_client_enter": (
        c_uint32,
        [c_void_p, c_uint32, c_char_p, c_size_t, c_uint64, POINTER(c_uint64)],
    ),
    "hr_client_leave": (None, [c_void_p, c_uint32, c_uint64]),
    "hr_gate_put": (None, [c_void_p, c_uint32, c_uint64, POINTER(HrGate)]),
    "hr_gate_get": (None, [c_void_p, c_uint32, POINTER(HrGate)]),
    "hr_plan_put": (None, [c_void_p, c_uint64, c_double]),
    "hr_open": (
        c_void_p,
        [POINTER(HrSettings), POINTER(HgIdentity), c_void_p, c_void_p, *_ERROR],
    ),
    "hr_listen": (c_int, [c_void_p, c_int, c_uint32, POINTER(HrTlsSettings), *_ERROR]),
    "hr_unlisten": (c_bool, [c_void_p, c_int]),
    "hr_listener_tls": (c_char_p, [c_void_p, c_int, POINTER(HrTlsSettings), *_ERROR]),
    "hr_targets_put": (c_char_p, [c_void_p, POINTER(HrTargets), c_uint32, *_ERROR]),
    "hr_start": (c_char_p, [c_void_p]),
    "hr_identity_put": (c_char_p, [c_void_p, POINTER(HgIdentity)]),
    "hr_stir": (None, [c_void_p]),
    "hr_drain": (None, [c_void_p, c_bool, c_bool, c_uint32]),
    "hr_stop": (None, [c_void_p]),
    "hr_close": (None, [c_void_p]),
    "hr_thread_total": (c_uint32, [c_void_p]),
    "hr_counts_of": (POINTER(HrThreadCounts), [c_void_p, c_uint32]),
    "hr_event_fd": (c_int, [c_void_p]),
    "hr_event_take": (c_bool, [c_void_p, POINTER(HrEvent)]),
    "hr_sessions": (c_uint32, [c_void_p, c_uint64, POINTER(HrSessionView), c_uint32]),
    "hr_session_kill": (c_bool, [c_void_p, c_uint64]),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
