"""Who is at the other end of a connection, as far as the socket tells."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

LOCAL = "unix"
"""In place of the address of a client on the Unix socket."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A user of the page, whose session and CSRF token have been verified."""

    name: str
    """Empty: nobody."""
    may_change: bool


@dataclass(frozen=True, slots=True)
class Peer:
    address: str
    unix_uid: int | None
    certified: str | None = None
    """The name in a client certificate that the listener has verified."""
    signed_in: SignedIn | None = None
    """Set by the page alone, for the requests that it makes itself."""


def peer_of(transport: asyncio.Transport) -> Peer:
    peername = transport.get_extra_info("peername")
    if isinstance(peername, tuple):
        return Peer(str(peername[0]), None, _certified(transport))
    return Peer(LOCAL, _unix_uid(transport))


def _certified(transport: asyncio.Transport) -> str | None:
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None:
        return None
    # Empty if there is none, and if the listener has no CA to verify it with.
    certificate = ssl_object.getpeercert()
    return _name_in(certificate) if certificate else None


def _name_in(certificate: Mapping[str, Any]) -> str:
    """The common name, else the first other one; a verified certificate always gives one."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    for kind, name in [*subject, *certificate.get("subjectAltName", ())]:
        if kind in ("commonName", "DNS", "URI", "IP Address"):
            return str(name)
    return f"certificate {certificate.get('serialNumber', 'without a name')}"


def _unix_uid(transport: asyncio.Transport) -> int | None:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return cast(int, struct.unpack("3i", raw)[1])
