"""How clients of statements are named: a table of the proxy's file, and of a database's traffic.

[identity], [databases.NAME.traffic.identity] ──read_identity──► IdentitySection
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from headgate.base.declared import Flat, Key
from headgate.budgets.identity import (
    IN_POSTGRES,
    MAX_SECRET_BYTES,
    MAX_TRUSTS,
    IdentityTerms,
    TagTrust,
)
from headgate.settings.document import Document
from headgate.settings.readers import file_path

MIN_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class IdentitySection:
    terms: Annotated[IdentityTerms, Flat()] = field(default_factory=IdentityTerms)
    secret_file: Annotated[
        Path | None,
        Key(
            f"File with the key ({MIN_SECRET_BYTES}–{MAX_SECRET_BYTES} bytes) that signs tags: "
            "HMAC-SHA256 in the tag headgate_sig.",
            file_path,
        ),
    ] = None


def read_identity(document: Document, raw: Any, place: str) -> IdentitySection:
    entries = raw.get("trust", []) if isinstance(raw, Mapping) else []
    rows = document.each(f"{place}.trust", TagTrust, MAX_TRUSTS, raw=entries)
    trusts = tuple(trust for _, trust in rows)
    section = document.read(raw, IdentitySection, place, frozenset({"trust"}))
    if section is None:
        return IdentitySection()
    secret = b""
    if section.secret_file is not None:
        try:
            secret = _secret_of(section.secret_file)
        except ValueError as error:
            document.fault(f"{place}.secret_file", str(error))
    elif any(trust.signed for trust in trusts):
        document.fault(f"{place}.secret_file", "is missing: signed tags need a key")
    return replace(section, terms=replace(section.terms, trusts=trusts, secret=secret))


def read_server_identity(document: Document, raw: Any, place: str) -> IdentityTerms:
    """Of a server with the extension, which knows less of a session than a proxy in its path."""
    terms = read_identity(document, raw, place).terms
    for source in terms.sources:
        if source.kind not in IN_POSTGRES:
            message = f"names {source.shown!r}, which is known to a proxy only"
            document.fault(f"{place}.order", message)
    if terms.priority_tag:
        document.fault(f"{place}.priority_tag", "is for the health gate, which a proxy has")
    return terms


def _secret_of(path: Path) -> bytes:
    """Its bytes without the line's end: never shown, never logged."""
    try:
        secret = path.read_bytes()[: MAX_SECRET_BYTES + 2].strip(b"\r\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ValueError(
            f"{path} holds {len(secret)} bytes, must hold {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}"
        )
    return secret
