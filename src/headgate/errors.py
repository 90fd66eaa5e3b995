"""Everything Headgate raises.

HeadgateError
├── InvalidName        a client, metric, database or scope name that cannot be one
├── InvalidSettings    a settings file or a runtime change; lists every fault with its place
├── InvalidRequest     an HTTP request or body that cannot be understood
├── BadDocument        (CLI) an agent's answer that this version cannot show; says where
├── Conflict           a change built on a revision that is no longer the newest
├── StoreUnavailable   the store cannot be read or written just now
│   ├── StateLost      what was in force is not known: neither of its two copies can be read
│   ├── StoreRefused   the fleet's store does not let us in: credentials, certificate, permission
│   ├── Compacted      changes since that revision are no longer known there: list anew
│   └── OutcomeUnknown a change was sent and no answer came: it may have been made, or not
├── LeaseLost          the fleet's store has let go of a lease that was to be renewed
├── ProbeFailed        a metric could not be read; carries the cause that samples keep
├── PeerFailed         another agent of the shard did not answer, or not as one; with the cause
├── WrongShard         another agent asks for a shard that is not this one's
├── PolicyRefused      a traffic policy that a server did not take, or that could not be put there
├── MeterFailed        a server's traffic counters could not be read; says why
├── NativeUnavailable  the traffic core (native/) is neither installed nor can be built; says why
├── RelayFault         the proxy's data path did not take what it was given; says what is wrong
├── ThrottlerUnavailable   (SDK) no agent answered within the bounded wait
└── WaitedTooLong      (SDK) the agent kept refusing past the caller's deadline

A refusal is not an error: it is a Decision (core/decision.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headgate.client.answers import Answer
    from headgate.core.samples import Cause


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
    """Until somebody acknowledges it, or a copy is put back."""


class StoreRefused(StoreUnavailable):
    """Trying again soon does not help; somebody has to mend it."""


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


class WriteRefused(ProbeFailed):
    """The server takes no writes: whatever it was, it is no primary now."""


class PeerFailed(HeadgateError):
    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class WrongShard(HeadgateError):
    pass


class PolicyRefused(HeadgateError):
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
        """The last refusal, with its verdict, metrics and `retry_after_s`."""
