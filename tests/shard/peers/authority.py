"""Signs the certificates of the agents of a shard."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from headgate.shard.peers import PeerAccess, load_access


class Authority:
    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.ca_path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_path))

    def server(self, *, believes: Path | None = None, name: str = "localhost") -> ssl.SSLContext:
        """As app.py makes it from tls_cert, tls_key and tls_client_ca."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(name).configure_cert(context)
        if believes is not None:
            context.load_verify_locations(believes)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def access(self, *, token_file: Path | None = None, name: str | None = None) -> PeerAccess:
        """What [peers] makes; `name` is that of a client certificate to show."""
        if name is None:
            return load_access(token_file=token_file, ca=self.ca_path, cert=None, key=None)
        issued = self._ca.issue_cert(name, common_name=name)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return load_access(token_file=token_file, ca=self.ca_path, cert=cert, key=key)
