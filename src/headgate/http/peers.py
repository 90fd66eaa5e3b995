"""Who is at the other end of a connection, as far as the socket tells."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class Peer:
    address: str
    unix_uid: int | None


def peer_of(transport: asyncio.Transport) -> Peer:
    peername = transport.get_extra_info("peername")
    if isinstance(peername, tuple):
        return Peer(str(peername[0]), None)
    return Peer("unix", _unix_uid(transport))


def _unix_uid(transport: asyncio.Transport) -> int | None:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return cast(int, struct.unpack("3i", raw)[1])
