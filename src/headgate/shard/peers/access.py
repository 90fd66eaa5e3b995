"""How this agent authenticates to others of its shard, and which of them it trusts."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from headgate.errors import Fault, InvalidSettings

_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class PeerAccess:
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None trusts what the host trusts, and shows no certificate."""


def load_access(
    *, token_file: Path | None, ca: Path | None, cert: Path | None, key: Path | None
) -> PeerAccess:
    """From the files that [peers] names, or InvalidSettings."""
    return PeerAccess(_token(token_file) if token_file else None, _context(ca, cert, key))


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        raise _fault("token_file", f"no token can be read from {path}") from None
    if not _TOKEN.fullmatch(token):
        message = f"the first line of {path} is no token: 1–512 visible characters of ASCII"
        raise _fault("token_file", message)
    return token


@cache
def host_trust() -> ssl.SSLContext:
    """What the host trusts: some hundred certificates, read once, and only for a peer with TLS."""
    return ssl.create_default_context()


def _context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise _fault("ca", f"{ca} cannot be used: {error}") from None
    if cert is None:
        return context
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise _fault("cert", f"{cert} and key {key} cannot be used: {error}") from None
    return context


def _fault(setting: str, message: str) -> InvalidSettings:
    return InvalidSettings([Fault(f"peers.{setting}", message)])
