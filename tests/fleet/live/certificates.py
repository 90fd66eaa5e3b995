"""Signs certificates for etcd members and their clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme

from tests.fixtures.etcd import Certificates

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._folder, self._name = folder, name
        self.path = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def issue(self, name: str, *, common_name: str | None = None, expired: bool = False) -> Pair:
        until = LONG_AGO if expired else None
        issued = self._ca.issue_cert(
            "127.0.0.1", common_name=common_name, not_before=LONG_AGO, not_after=until
        )
        stem = f"{self._name}-{name}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        pair.key.write_bytes(issued.private_key_pem.bytes())
        pair.key.chmod(0o644)  # the server runs as another user
        return pair

    def cluster(self, *, with_clients: bool = True, expired: bool = False) -> Certificates:
        """For a cluster; `with_clients`: only those get in that have a certificate of ours."""
        server, own = self.issue("server", expired=expired), self.issue("operator")
        believed = self.path if with_clients else None
        return Certificates(server.cert, server.key, believed, self.path, own.cert, own.key)
