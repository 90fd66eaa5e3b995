"""How an agent shows itself to etcd, and which members it believes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path

from headgate.errors import Fault, InvalidSettings


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything was read from: certificates and passwords are renewed while we run."""

    password: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None uses the host's CAs, and sends no certificate."""
    files: Files = Files()

    def renewed(self) -> EtcdAccess:
        """After a rejection: as the files are now. A file that cannot be read stays as it was."""
        try:
            if self.tls is not None:
                _fill(self.tls, self.files)
            fresh = self.password if self.files.password is None else _password(self.files.password)
        except InvalidSettings:
            return self
        return replace(self, password=fresh)


def load_access(
    *,
    username: str = "",
    password_file: Path | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> EtcdAccess:
    """From the files that [fleet] names, or InvalidSettings."""
    if bool(username) != (password_file is not None):
        missing, given = (
            ("password_file", "username") if username else ("username", "password_file")
        )
        raise _fault(missing, f"is required with {given}: give both, or neither")
    files = Files(password_file, ca, cert, key)
    password = _password(password_file) if password_file else ""
    return EtcdAccess(username, password, _context(files), files)


def _password(path: Path) -> str:
    try:
        password = path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        raise _fault("password_file", f"no password can be read from {path}") from None
    if not password:
        raise _fault("password_file", f"the first line of {path} is empty")
    return password


def _context(files: Files) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except OSError as error:
        raise _fault("ca", f"{files.ca} cannot be used: {error}") from None
    _fill(context, Files(cert=files.cert, key=files.key))
    return context


def _fill(context: ssl.SSLContext, files: Files) -> None:
    """Connections that are made from now on use these; what was believed still is."""
    try:
        if files.ca is not None:
            context.load_verify_locations(files.ca)
    except OSError as error:
        raise _fault("ca", f"{files.ca} cannot be used: {error}") from None
    try:
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key)
    except OSError as error:
        pair = f"{files.cert} and key {files.key}"
        raise _fault("cert", f"{pair} cannot be used: {error}") from None


def _fault(setting: str, message: str) -> InvalidSettings:
    return InvalidSettings([Fault(f"fleet.{setting}", message)])
