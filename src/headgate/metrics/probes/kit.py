"""What an engine brings: how to connect, and its metrics as one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from headgate.metrics.model import Option
from headgate.metrics.probes.connections import Connector, Reader, S
from headgate.metrics.probes.heartbeats import Beat, Enders
from headgate.metrics.probes.roles import FenceReader, RoleReader
from headgate.metrics.probes.sessions import SessionReader
from headgate.metrics.probes.statements import StatementReader

Options = Mapping[str, Option]
MakeReader = Callable[[Options], Reader[S]]


@dataclass(frozen=True, slots=True)
class Kit(Generic[S]):
    connector: Connector[S]
    metrics: Mapping[str, MakeReader[S]]
    custom: Callable[[str], Reader[S]]
    """The reader of an operator's own query."""
    data_directory: Callable[[S], Awaitable[str]]
    beat: Callable[[tuple[str, ...], float], Beat[S]]
    """The writer of a heartbeat into a table, every so many seconds."""
    enders: Enders[S]
    """For writes that were given up while the server still holds them."""
    role: Callable[[], RoleReader[S]]
    sessions: SessionReader[S]
    """Who is connected, and at work."""
    statements: StatementReader[S] | None = None
    """What they run, by the server's number of it; None: it has none."""
    fence: FenceReader[S] | None = None
    """For a server that can become a replica and keep its connections; None: it cannot."""


def plain(reader: Reader[S]) -> MakeReader[S]:
    """A metric without options and without memory."""
    return lambda options: reader
