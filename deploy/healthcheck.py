#!/opt/headgate/bin/python
"""Whether the agent of this container serves: HEALTHCHECK of deploy/Dockerfile.

0: it does; 1: it does not, and the words say what came instead. HEADGATE_URL says where it
listens: http://127.0.0.1:8087 unless it is set, https://… or unix:///path. Standard library only:
a check that imports the agent would cost more than the agent.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8087"
TIMEOUT_S = 2.0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def connection_to(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return UnixConnection(parts.path)
    host = parts.hostname or "127.0.0.1"
    if parts.scheme == "https":
        # On loopback, where no certificate has the right name; the kubelet does the same.
        unverified = ssl._create_unverified_context()  # noqa: S323
        return http.client.HTTPSConnection(
            host, parts.port or 8087, timeout=TIMEOUT_S, context=unverified
        )
    return http.client.HTTPConnection(host, parts.port or 8087, timeout=TIMEOUT_S)


def main(environment: dict[str, str]) -> int:
    url = environment.get("HEADGATE_URL") or DEFAULT_URL
    connection = connection_to(url)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"{url}/healthz: {error or type(error).__name__}\n")
        return 1
    finally:
        connection.close()
    if status != 200:
        sys.stderr.write(f"{url}/healthz answers {status}, not 200\n")
    return int(status != 200)


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))  # noqa: TID251 -- a program of its own
