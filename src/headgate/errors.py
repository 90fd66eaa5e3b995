"""Everything Headgate raises.

HeadgateError
├── InvalidName        a client, metric, database or scope name that is not valid
├── InvalidSettings    a settings file or a runtime change; lists every fault with its place
├── InvalidRequest     an HTTP request or body that cannot be understood
├── BadDocument        (CLI) an agent's answer that this version cannot show; says where
├── Conflict           a change built on a revision that is no longer the newest
├── StoreUnavailable   the store cannot be read or written just now
│   ├── StateLost      neither copy of the state can be read, so the changes in force are unknown
│   ├── StoreRejected   the fleet's store rejects us: credentials, certificate, permission
│   ├── Compacted      changes since that revision are no longer stored: list all of them again
│   └── OutcomeUnknown a change was sent and no answer came: it may have been made, or not
├── LeaseLost          the fleet's store has ended a lease that was to be renewed
├── ProbeFailed        a metric could not be read; carries the cause that samples keep
├── PeerFailed         another agent of the shard gave no answer, or no valid one; with the cause
├── WrongShard         another agent's request is about a shard that is not this agent's
├── PolicyRejected      a server did not accept a traffic policy, or it could not be written there
├── MeterFailed        a server's traffic counters could not be read; says why
├── NativeUnavailable  the traffic core (native/) is neither installed nor can be built; says why
├── RelayFault         the proxy's data path rejected its input; says what is wrong
├── ThrottlerUnavailable   (SDK) no agent answered within the bounded wait
└── WaitedTooLong      (SDK) the agent rejected every check until the caller's deadline

A rejection is not an error: it is a Decision (check/model.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headgate.client.answers import Answer
    from headgate.metrics.samples import Cause


class HeadgateError(Exception):
    """The root of the tree above."""


class BadDocument(HeadgateError):
    def __init__(self, place: str, what: str) -> None:
        super().__init__(
            f"the agent's answer cannot be shown: {place} {what}; "
            "is the agent of another version? --json shows the answer as it came"
        )


class InvalidName(HeadgateError, ValueError):
    """Says which name, and what a name may look like."""


# A NamedTuple, not a dataclass: the SDK loads this module, and is to be cheap to import.
class Fault(NamedTuple):
    """One thing that is wrong with given settings, and where."""

    place: str
    message: str
    line: int | None = None

    @property
    def variable(self) -> bool:
        """Of the environment, and not of the file."""
        return self.place.startswith("HEADGATE_")

    def __str__(self) -> str:
        line = f"line {self.line}" if self.line else ""
        where = ", ".join(part for part in (line, self.place) if part)
        return f"{where}: {self.message}" if where else self.message


class InvalidSettings(HeadgateError, ValueError):
    def __init__(self, faults: list[Fault], source: str = "") -> None:
        self.faults = faults
        self.source = source
        told = (f"{source}: {one}" if source and not one.variable else str(one) for one in faults)
        super().__init__("\n".join(told))


class InvalidRequest(HeadgateError, ValueError):
    """Becomes an RFC 9457 problem at the HTTP edge."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.retry_after_s = retry_after_s


class Conflict(HeadgateError):
    pass


class StoreUnavailable(HeadgateError):
    pass


class StateLost(StoreUnavailable):
    """Until an operator acknowledges it, or a copy is put back."""


class StoreRejected(StoreUnavailable):
    """A retry does not help; an operator has to fix the cause."""


class Compacted(StoreUnavailable):
    pass


class OutcomeUnknown(StoreUnavailable):
    pass


class LeaseLost(HeadgateError):
    pass


class ProbeFailed(HeadgateError):
    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class WriteRejected(ProbeFailed):
    """The server takes no writes: whatever it was, it is no primary now."""


class PeerFailed(HeadgateError):
    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class WrongShard(HeadgateError):
    pass


class PolicyRejected(HeadgateError):
    pass


class MeterFailed(HeadgateError):
    pass


class NativeUnavailable(HeadgateError):
    pass


class RelayFault(HeadgateError):
    pass


class ThrottlerUnavailable(HeadgateError):
    pass


class WaitedTooLong(HeadgateError, TimeoutError):
    def __init__(self, message: str, answer: Answer | None = None) -> None:
        super().__init__(message)
        self.answer = answer
        """The last rejection, with its verdict, metrics and `retry_after_s`."""
