"""Exit codes: every verdict has its own, and only an admission is 0."""

from __future__ import annotations

import pytest

from headgate.check.model import Verdict
from headgate.cli.api import AgentUnreachable
from headgate.cli.exits import (
    EXIT_CODES,
    FAILED,
    OTHER_REJECTION,
    UNREACHABLE,
    USAGE,
    exit_code_of_error,
    exit_code_of_verdict,
    exit_code_rows,
)
from headgate.errors import Fault, HeadgateError, InvalidName, InvalidRequest, InvalidSettings


def test_every_verdict_has_an_exit_code_of_its_own() -> None:
    assert set(EXIT_CODES) == set(Verdict)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_ok_is_the_only_verdict_on_which_a_script_proceeds() -> None:
    """R28."""
    assert [verdict for verdict, code in EXIT_CODES.items() if code == 0] == [Verdict.OK]


def test_no_verdict_can_be_mistaken_for_a_failure_of_the_command() -> None:
    assert not {FAILED, USAGE, UNREACHABLE, OTHER_REJECTION} & set(EXIT_CODES.values())


def test_a_verdict_of_a_newer_agent_is_a_rejection() -> None:
    assert exit_code_of_verdict("HELD_BY_BUDGET") == OTHER_REJECTION


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AgentUnreachable("x"), 20),
        (InvalidRequest("x", status=400), 2),
        (InvalidRequest("x", status=401), 1),
        (InvalidRequest("x", status=500), 18),
        (InvalidSettings([Fault("url", "x")]), 2),
        (InvalidName("x"), 2),
        (HeadgateError("x"), 1),
    ],
)
def test_errors_have_exit_codes(error: HeadgateError, code: int) -> None:
    assert exit_code_of_error(error) == code


def test_the_table_lists_each_code_once() -> None:
    codes = [code for code, _, _ in exit_code_rows()]
    assert codes == sorted(set(codes))
    assert {0, 1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20} == set(codes)
