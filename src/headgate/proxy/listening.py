"""Where a proxy listens: opened, inherited, closed.   [[listen]] ──► Listening ──► NativeRelay"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from headgate.budgets.identity import IdentityTerms
from headgate.errors import RelayFault
from headgate.proxy.handover import (
    Inheritance,
    ListeningSocket,
    close_all,
    is_unix,
    listens_at,
    open_listening,
    shown_address,
    unlink_own,
)
from headgate.proxy.model import ListenTerms
from headgate.proxy.relay import NativeRelay
from headgate.proxy.status import ProxyFacts, listen_document

log = structlog.get_logger()


@dataclass(slots=True)
class ListenedAddress:
    """An address that is served: its number in the relay, and our own hold on its socket."""

    terms: ListenTerms
    number: int
    sock: socket.socket
    inode: int | None = None

    def unlink(self) -> None:
        if is_unix(self.terms.host):
            unlink_own(Path(self.terms.host), self.inode)


class Listening:
    def __init__(self, facts: ProxyFacts) -> None:
        self._facts = facts
        self._served: list[ListenedAddress] = []

    @property
    def terms(self) -> tuple[ListenTerms, ...]:
        """With the routes that they have."""
        return tuple(one.terms for one in self._served)

    def offered(self) -> list[tuple[ListeningSocket, int]]:
        """For the next process: each with its descriptor."""
        return [
            (ListeningSocket("listen", one.terms.host, one.terms.port), one.sock.fileno())
            for one in self._served
        ]

    def open(
        self,
        relay: NativeRelay,
        wanted: Sequence[ListenTerms],
        given: list[socket.socket],
        inheritance: Inheritance | None,
    ) -> None:
        """`given`: by the service manager; those that nobody wants are closed."""
        for terms in wanted:
            sock = _of_manager(given, terms)
            if sock is None and inheritance is not None:
                sock = inheritance.take_socket("listen", terms.host, terms.port)
            self._add(relay, terms, sock or open_listening(terms.host, terms.port))
        close_all(given)

    def follow(
        self,
        relay: NativeRelay,
        wanted: Sequence[ListenTerms],
        identity: IdentityTerms,
        before: IdentityTerms,
    ) -> None:
        """All of it, or nothing: RelayFault for what the relay rejects."""
        places = {(one.terms.host, one.terms.port): one for one in self._served}
        kept = [(places[p], t) for t in wanted if (p := (t.host, t.port)) in places]
        added = [t for t in wanted if (t.host, t.port) not in places]
        opened: list[tuple[ListenTerms, socket.socket]] = []
        try:
            opened += [(terms, open_listening(terms.host, terms.port)) for terms in added]
            relay.put_identity(identity)
            for one, terms in kept:
                relay.put_listener_tls(one.number, terms)
            for terms, sock in opened:
                self._add(relay, terms, sock)
        except RelayFault:
            close_all(sock for _, sock in opened)
            relay.put_identity(before)
            for one, _ in kept:
                with suppress(RelayFault):
                    relay.put_listener_tls(one.number, one.terms)
            raise
        for one, terms in kept:
            one.terms = replace(terms, route=one.terms.route)
        there = {(terms.host, terms.port) for terms in wanted}
        for place, one in places.items():
            if place not in there:
                self._drop(relay, one)
        self._describe()

    def close(self, *, unlink: bool) -> None:
        """The relay closes its descriptors when it drains. If ours stayed open, clients would wait
        in the backlog, instead of getting "connection refused" and trying elsewhere."""
        close_all(one.sock for one in self._served)
        if unlink:
            for one in self._served:
                one.unlink()

    def _add(self, relay: NativeRelay, terms: ListenTerms, sock: socket.socket) -> None:
        """The relay takes the socket; a second hold on it is ours, to hand over."""
        ours = sock.dup()
        try:
            number = relay.listen(sock, terms)
        except RelayFault:
            ours.close()
            raise
        inode = Path(terms.host).stat().st_ino if is_unix(terms.host) else None
        self._served.append(ListenedAddress(terms, number, ours, inode))
        self._describe()

    def _drop(self, relay: NativeRelay, one: ListenedAddress) -> None:
        """Sessions that came by it stay."""
        relay.unlisten(one.number)
        self._served.remove(one)
        one.unlink()
        one.sock.close()
        log.info("proxy.unlistened", listen=one.terms.shown)

    def _describe(self) -> None:
        self._facts.listen = [
            listen_document(one.terms, shown_address(one.sock)) for one in self._served
        ]


def _of_manager(given: list[socket.socket], terms: ListenTerms) -> socket.socket | None:
    for index, sock in enumerate(given):
        if listens_at(sock, terms.host, terms.port):
            return given.pop(index)
    return None
