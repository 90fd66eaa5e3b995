"""Who may change things: a bearer token's role, or the permissions of the Unix socket."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from headgate.errors import InvalidRequest
from headgate.http.peers import Peer


@dataclass(frozen=True, slots=True)
class Credential:
    name: str
    may_change: bool
    sha256: str


class Gatekeeper:
    def __init__(self, credentials: Iterable[Credential]) -> None:
        self._credentials = tuple(credentials)

    def who_changes(self, peer: Peer, authorization: str | None) -> str:
        """The name for the audit, or InvalidRequest (401, 403) with what to do."""
        if authorization is None and peer.unix_uid is not None:
            return f"uid:{peer.unix_uid}"
        credential = self._find(authorization)
        if not credential.may_change:
            raise InvalidRequest(
                f"{credential.name} is a viewer; changing needs a token with the role operator",
                status=403,
            )
        return credential.name

    def _find(self, authorization: str | None) -> Credential:
        if not self._credentials:
            raise InvalidRequest(
                "changes over TCP need a token, and none is configured: use the Unix socket, "
                "or add one with `headgate token`",
                status=401,
            )
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise InvalidRequest("send a token: Authorization: Bearer …", status=401)
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        found = None
        for credential in self._credentials:  # All of them, so that time tells nothing.
            if hmac.compare_digest(credential.sha256, digest):
                found = credential
        if found is None:
            raise InvalidRequest("this token is not known here", status=401)
        return found
