"""Who may do what: a bearer token's role, a client certificate, or the Unix socket's permissions.

looking    everybody who gets here
changing   operators, and who may open the Unix socket
pulling    the agents of a shard (peers), operators, and who may open the Unix socket
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headgate.errors import InvalidRequest
from headgate.http.peers import Peer, SignedIn

TokenRole = Literal["viewer", "operator", "peer"]

_HOW_CHANGES_ARE_MADE = (
    "changes over TCP need a token, and none is configured: use the Unix socket, "
    "or add one with `headgate token`"
)
_HOW_PEERS_SHOW_THEMSELVES = (
    "agents must authenticate to each other: set token_file, or cert and key, in [peers] of the "
    'calling agent, and here [[tokens]] with the role "peer", or tls_client_ca of [agent]'
)


@dataclass(frozen=True, slots=True)
class Credential:
    name: str
    role: TokenRole
    sha256: str


class Gatekeeper:
    def __init__(self, credentials: Iterable[Credential]) -> None:
        self._credentials = tuple(credentials)

    def who_changes(self, peer: Peer, authorization: str | None) -> str:
        """The name for the audit, or InvalidRequest (401, 403) with what to do."""
        if peer.signed_in is not None:
            return _who_is_signed_in(peer.signed_in)
        if authorization is None and peer.unix_uid is not None:
            return f"uid:{peer.unix_uid}"
        if not self._credentials:
            raise InvalidRequest(_HOW_CHANGES_ARE_MADE, status=401)
        credential = self._find(authorization)
        if credential.role != "operator":
            raise InvalidRequest(
                f"{credential.name} is a {credential.role}; changing needs a token with the role "
                "operator",
                status=403,
            )
        return credential.name

    def who_pulls(self, peer: Peer, authorization: str | None) -> str:
        """The name of another agent, or InvalidRequest (401, 403) with what to configure.

        Loopback is not enough: a caller that reads or wakes a shard must be known.
        """
        if peer.certified is not None:
            return peer.certified
        if authorization is None and peer.unix_uid is not None:
            return f"uid:{peer.unix_uid}"
        if authorization is None or not self._credentials:
            raise InvalidRequest(_HOW_PEERS_SHOW_THEMSELVES, status=401)
        credential = self._find(authorization)
        if credential.role == "viewer":
            raise InvalidRequest(
                f"{credential.name} is a viewer; pulling needs a token with the role peer",
                status=403,
            )
        return credential.name

    @property
    def has_operators(self) -> bool:
        """Whether anybody can sign in who may change something."""
        return any(credential.role == "operator" for credential in self._credentials)

    def knows(self, credential: Credential) -> bool:
        """Whether it is still among those of the settings."""
        return credential in self._credentials

    def holder(self, authorization: str) -> Credential:
        """Whose header it is, or InvalidRequest (401)."""
        return self._find(authorization)

    def has_token(self, authorization: str) -> bool:
        try:
            self._find(authorization)
        except InvalidRequest:
            return False
        return True

    def find(self, token: str) -> Credential:
        """Whose it is, or InvalidRequest (401)."""
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        found = None
        for credential in self._credentials:  # All of them, so that time tells nothing.
            if hmac.compare_digest(credential.sha256, digest):
                found = credential
        if found is None:
            raise InvalidRequest("this agent does not know the token", status=401)
        return found

    def _find(self, authorization: str | None) -> Credential:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise InvalidRequest("send a token: Authorization: Bearer …", status=401)
        return self.find(token)


def _who_is_signed_in(signed_in: SignedIn) -> str:
    if not signed_in.name:
        raise InvalidRequest(
            "you are not signed in any more (the agent has restarted, or the session has "
            "expired): sign in with an operator's token; nothing was changed",
            status=401,
        )
    if not signed_in.may_change:
        raise InvalidRequest(
            f"{signed_in.name} may look, not change: sign in with an operator's token",
            status=403,
        )
    return signed_in.name
