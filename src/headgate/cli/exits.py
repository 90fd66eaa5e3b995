"""Exit codes: what a script may rely on. One row a code; the reference page derives from it."""

from __future__ import annotations

from headgate.check.model import VERDICT_MEANINGS, Verdict
from headgate.cli.api import AgentUnreachable
from headgate.errors import (
    HeadgateError,
    InvalidName,
    InvalidRequest,
    InvalidSettings,
    ThrottlerUnavailable,
    WaitedTooLong,
)

DONE = 0
FAILED = 1
USAGE = 2
OTHER_REJECTION = 19
UNREACHABLE = 20

EXIT_CODES: dict[Verdict, int] = {
    Verdict.OK: DONE,
    Verdict.THRESHOLD_EXCEEDED: 10,
    Verdict.REJECTED_BY_RATIO: 11,
    Verdict.ON_HOLD: 12,
    Verdict.UNKNOWN_METRIC: 13,
    Verdict.METRIC_UNAVAILABLE: 14,
    Verdict.WRONG_AGENT: 15,
    Verdict.PACED: 16,
    Verdict.OVER_BUDGET: 17,
    Verdict.INTERNAL_ERROR: 18,
}


def exit_code_of_verdict(verdict: str) -> int:
    """A verdict that only a newer agent knows is a rejection all the same."""
    try:
        return EXIT_CODES[Verdict(verdict)]
    except ValueError:
        return OTHER_REJECTION


def exit_code_of_error(error: HeadgateError) -> int:
    if isinstance(error, AgentUnreachable | ThrottlerUnavailable):
        return UNREACHABLE
    if isinstance(error, WaitedTooLong) and error.answer is not None:
        return exit_code_of_verdict(error.answer.verdict)
    if isinstance(error, InvalidRequest) and error.status == 500:
        return EXIT_CODES[Verdict.INTERNAL_ERROR]
    # A 422 is about the request, or lists the faults of the settings in it.
    wrong_question = isinstance(error, InvalidRequest) and (
        error.status == 400 or (error.status == 422 and not getattr(error, "faults", ()))
    )
    return USAGE if wrong_question or isinstance(error, InvalidSettings | InvalidName) else FAILED


def exit_code_rows() -> list[tuple[int, str, str]]:
    """(code, name, meaning), ascending."""
    verdicts = [(code, v.value, VERDICT_MEANINGS[v]) for v, code in EXIT_CODES.items()]
    others = [
        (FAILED, "failed", "the agent rejected a change, or linted settings have faults"),
        (USAGE, "usage", "the command was called wrongly, or settings cannot be used"),
        (OTHER_REJECTION, "other rejection", "rejected with a verdict that this version lacks"),
        (UNREACHABLE, "unreachable", "no agent answered: there is no permission to work"),
    ]
    return sorted([*verdicts, *others])
