"""What the agent said, as values. parsing.py makes them of the bytes that came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

OK = "OK"
ON_HOLD = "ON_HOLD"
UNKNOWN_METRIC = "UNKNOWN_METRIC"
METRIC_UNAVAILABLE = "METRIC_UNAVAILABLE"
WRONG_AGENT = "WRONG_AGENT"
PACED = "PACED"
OVER_BUDGET = "OVER_BUDGET"
UNAVAILABLE = "UNAVAILABLE"
REJECTED = "REJECTED"
"""A rejection by its HTTP status alone: the sender gave no verdict."""


class MetricAnswer(NamedTuple):
    """One metric as the agent saw it. A missing value is None, never 0."""

    metric: str
    scope: str
    state: str
    value: float | None
    unit: str
    threshold: float | None
    comparison: str
    age_s: float | None
    cause: str | None
    detail: str
    unavailable_for_s: float | None


class _Draft:
    """An answer that is being filled. It becomes an Answer by its class: through a __setattr__ that
    rejects changes, filling one takes ten times as long, and each check makes one."""

    __slots__ = (
        "admitted",
        "check_at",
        "check_at_database",
        "checks",
        "database",
        "decided",
        "metrics",
        "raw",
        "read_only",
        "reason",
        "retry_after_s",
        "unthrottled",
        "utilization",
        "verdict",
    )  # fmt: skip


class Answer(_Draft):
    """Truthy when the work may start: one answer is the permission for one piece of work.

    No NamedTuple: `for … in gate.check()` must be an error, and `raw` is no part of the value.
    """

    __slots__ = ()
    __match_args__ = (
        "verdict", "admitted", "reason", "retry_after_s", "utilization", "metrics", "database",
        "checks", "read_only", "unthrottled", "check_at", "check_at_database", "decided", "raw",
    )  # fmt: skip

    def __init__(
        self,
        verdict: str,
        admitted: bool,
        reason: str,
        retry_after_s: float | None = None,
        utilization: float | None = None,
        metrics: tuple[MetricAnswer, ...] = (),
        database: str = "",
        checks: tuple[Answer, ...] = (),
        read_only: bool = False,
        unthrottled: bool = False,
        check_at: str | None = None,
        check_at_database: str | None = None,
        decided: str = "",
        raw: Mapping[str, Any] | None = None,
    ) -> None:
        object.__setattr__(self, "__class__", _Draft)
        draft: Any = self
        draft.verdict = verdict
        draft.admitted = admitted
        draft.reason = reason
        draft.retry_after_s = retry_after_s
        draft.utilization = utilization
        draft.metrics = metrics
        draft.database = database
        draft.checks = checks
        draft.read_only = read_only
        draft.unthrottled = unthrottled
        draft.check_at = check_at
        draft.check_at_database = check_at_database
        draft.decided = decided or ("nobody" if unthrottled else "agent")
        raw = {} if raw is None else raw
        draft.raw = raw
        draft.__class__ = Answer
        if TYPE_CHECKING:
            self.verdict: Final = verdict
            self.admitted: Final = admitted
            self.reason: Final = reason
            self.retry_after_s: Final = retry_after_s
            self.utilization: Final = utilization
            self.metrics: Final = metrics
            self.database: Final = database
            """Empty where the check was about several databases at once: see `checks`."""
            self.checks: Final = checks
            self.read_only: Final = read_only
            """The answer to `check_read`; never a permission to write."""
            self.unthrottled: Final = unthrottled
            """No agent answered, and this client's setting is to continue without one."""
            self.check_at: Final = check_at
            """With WRONG_AGENT: the URL of the agent to check at instead, if known."""
            self.check_at_database: Final = check_at_database
            """And what that agent calls the database."""
            self.decided: Final = decided
            """Who did: the "agent", this process from a snapshot ("local"), or "nobody"."""
            self.raw: Final[Mapping[str, Any]] = raw

    def with_retry_after(self, retry_after_s: float | None) -> Answer:
        """The same answer for another caller, with its own time to wait. Each local rejection makes
        one: filled like this, it takes half of what Answer(…) takes."""
        draft: Any = _Draft()
        draft.verdict = self.verdict
        draft.admitted = self.admitted
        draft.reason = self.reason
        draft.retry_after_s = retry_after_s
        draft.utilization = self.utilization
        draft.metrics = self.metrics
        draft.database = self.database
        draft.checks = self.checks
        draft.read_only = self.read_only
        draft.unthrottled = self.unthrottled
        draft.check_at = self.check_at
        draft.check_at_database = self.check_at_database
        draft.decided = self.decided
        draft.raw = self.raw
        draft.__class__ = Answer
        answer: Answer = draft
        return answer

    def __bool__(self) -> bool:
        return self.admitted

    @property
    def rejections(self) -> tuple[Answer, ...]:
        """The rejections, one for each database that rejected; empty for an admission."""
        return tuple(part for part in self.checks or (self,) if not part.admitted)

    def __setattr__(self, name: str, value: object) -> None:
        # Set once, rather than never: that is how __init__, pickle and copy fill it.
        if hasattr(self, name):
            raise AttributeError(f"an answer is not changed: {name!r} is what the agent said")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an answer is not changed: {name!r} is what the agent said")

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if isinstance(other, Answer) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value())

    def __repr__(self) -> str:
        fields = zip(self.__match_args__, self._value(), strict=False)
        return f"Answer({', '.join(f'{name}={value!r}' for name, value in fields)})"

    def _value(self) -> tuple[object, ...]:
        """All but `raw`: two agents may word one answer differently."""
        return tuple(getattr(self, name) for name in self.__match_args__[:-1])
