"""Readers that several sections share: a value, or ValueError with what it should have been."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from headgate.base.declared import text
from headgate.base.names import parse_database
from headgate.base.paths import expanded

T = TypeVar("T")
_AGENT_URL = re.compile(r"https?://[^\s/@?#]+")
_PLACE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,126}")
_MODE = re.compile(r"0?[0-7]{3}")


def file_path(value: object) -> Path:
    raw = text(4096)(value)
    if not raw:
        raise ValueError("is empty, must be a path")
    return expanded(raw)


def unless_empty(read: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value == "" else read(value)


def address(value: object) -> tuple[str, int]:
    raw = text(255)(value)
    host, colon, port = raw.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"is {raw!r}, must be host:port, such as 127.0.0.1:8087")
    return host.strip("[]"), int(port)


def server_address(default_port: int | None = None) -> Callable[[object], tuple[str, int]]:
    """host:port, or the absolute path of a Unix socket (port 0)."""

    def read(value: object) -> tuple[str, int]:
        raw = text(255)(value)
        if raw.startswith("/"):
            return raw, 0
        host, colon, port = raw.rpartition(":")
        if not colon or (raw.endswith("]") and default_port):
            host, port = raw, str(default_port or "")
        if not port.isdecimal() or not 0 <= int(port) <= 65535 or not host.strip("[]"):
            raise ValueError(f"is {raw!r}, must be host:port, such as db1:5432, or a path")
        return host.strip("[]"), int(port)

    return read


def socket_mode(value: object) -> str:
    mode = text(4)(value)
    if not _MODE.fullmatch(mode):
        raise ValueError(f"is {mode!r}, must be an octal mode such as 0660")
    return mode


def database_name(value: object) -> str:
    return parse_database(text(63)(value))


def place_name(value: object) -> str:
    """Of a shard, a region, a cluster."""
    name = text(127)(value)
    if not _PLACE_NAME.fullmatch(name):
        raise ValueError(f"is {name!r}, must be 1–127 of A–Z, a–z, 0–9, _ . : / and -")
    return name


# --- addresses of others ---------------------------------------------------------------------


def split_url(url: str) -> SplitResult | None:
    """None for one without a host, or with a port that is none."""
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:  # A port beyond 65535, a bracket that is not closed.
        return None


def agent_url(value: object) -> str:
    url = text(512)(value).rstrip("/")
    if split_url(url) is None or not _AGENT_URL.fullmatch(url):
        raise ValueError("must read like https://db1:8087, without path, user or password")
    return url


def agent_template(value: object) -> str:
    raw = text(512)(value)
    if not ("{host}" in raw or "{name}" in raw):
        raise ValueError("must hold {host} or {name}, such as https://{host}:8087")
    agent_url(raw.replace("{host}", "db1").replace("{name}", "db1"))
    return raw.rstrip("/")


def is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def is_exposed(url: str) -> bool:
    """Plain text over a network."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname)


# --- secrets ---------------------------------------------------------------------------------

_PASSWORD = re.compile(r"\bpassword\s*=|://[^/@:]*:[^/@]+@", re.IGNORECASE)


def has_password(dsn: str) -> bool:
    return _PASSWORD.search(dsn) is not None


def is_open(path: Path) -> bool:
    """Everybody on this host can read it."""
    try:
        return bool(path.stat().st_mode & 0o004)
    except OSError:  # Its reader reports it.
        return False


# --- what goes together ----------------------------------------------------------------------


def pair_faults(first: object, second: object, key: str, other: str) -> Iterator[tuple[str, str]]:
    if (first is None) is not (second is None):
        yield key, f"and {other} go together: give both or neither"


def exposure_faults(host: str | None, key: str, *, allowed: object) -> Iterator[tuple[str, str]]:
    """Of an address that is listened on; None: there is none."""
    if not (host is None or is_loopback(host) or allowed):
        yield (
            key,
            (
                f"{host} is not loopback: give tls_cert and tls_key, or say allow_plaintext = true "
                "if something else protects the connection"
            ),
        )
