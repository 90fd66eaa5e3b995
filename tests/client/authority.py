"""Someone who signs certificates, for as long as a test run."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.ca_path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_path))

    def vouches_for(self, *names: str) -> ssl.SSLContext:
        """What a server needs to go by these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        return context
