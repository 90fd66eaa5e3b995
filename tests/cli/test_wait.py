"""`headgate wait`: leave for a script, and an exit code that it can rely on."""

from __future__ import annotations

import json

import pytest

from headgate.cli.exits import exit_code_of_error
from headgate.client.answers import Answer
from headgate.errors import ThrottlerUnavailable, WaitedTooLong
from tests.cli import builders
from tests.cli.conftest import Run
from tests.cli.scripted import Reply, ScriptedAgent

WAIT = ("wait", "--as", "etl:nightly", "--database", "main")


def test_it_waits_until_admitted_and_says_what_for(scripted: ScriptedAgent, run: Run) -> None:
    rejected = Reply(builders.rejection(retry_after_ms=20), 429)
    replies = iter([rejected, rejected, Reply(builders.answer())])
    scripted.replies["GET", "/v1/check"] = lambda _: next(replies)
    ran = run(*WAIT)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("headgate: etl:nightly: waits: ")
    assert len(scripted.heard) == 3


def test_quiet_says_nothing(scripted: ScriptedAgent, run: Run) -> None:
    replies = iter([Reply(builders.rejection(retry_after_ms=20), 429), Reply(builders.answer())])
    scripted.replies["GET", "/v1/check"] = lambda _: next(replies)
    ran = run(*WAIT, "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize(("verdict", "code"), [("THRESHOLD_EXCEEDED", 10), ("ON_HOLD", 12)])
def test_what_waited_too_long_exits_as_check_would(
    scripted: ScriptedAgent, run: Run, verdict: str, code: int
) -> None:
    """R143: and where the agent says an hour and half of one is left, the answer is given now."""
    scripted.says("/v1/check", builders.rejection(verdict, retry_after_ms=3_600_000), status=429)
    ran = run(*WAIT, "--max-wait", "30m")
    assert (ran.code, len(scripted.heard)) == (code, 1)
    assert "no further check fits into 1800 s" in ran.err and "retry after 3600.0 s" in ran.err
    told = json.loads(run(*WAIT, "--max-wait", "30m", "--json").out)
    assert (told["admitted"], told["verdict"], told["waited_s"]) == (False, verdict, 1800.0)


def test_an_admission_as_a_document(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says("/v1/check", builders.answer())
    told = json.loads(run(*WAIT, "--json").out)
    assert (told["app"], told["database"], told["admitted"]) == ("etl:nightly", "main", True)
    assert told["verdict"] == "OK" and not told["unthrottled"]


@pytest.mark.parametrize(("policy", "code"), [("closed", 20), ("open", 0)])
def test_a_silent_agent_is_answered_by_the_policy(run: Run, policy: str, code: int) -> None:
    """R48."""
    ran = run(
        *WAIT, "--unavailable-after", "100ms", "--on-unavailable", policy, url="http://127.0.0.1:1"
    )
    assert ran.code == code
    assert "no agent answered" in ran.err


@pytest.mark.parametrize(
    "argv",
    [
        ("--max-wait", "soon"),
        ("--on-unavailable", "maybe"),
        ("--scope", "galaxy"),
        ("--database", "a b"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(run: Run, argv: tuple[str, ...]) -> None:
    assert run(*WAIT, *argv).code == 2


def test_the_environment_names_the_client(
    scripted: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.says("/v1/check", builders.answer(database="orders"))
    monkeypatch.setenv("HEADGATE_APP", "from:env")
    monkeypatch.setenv("HEADGATE_DATABASE", "orders")
    assert run("wait").code == 0
    assert scripted.heard[0].query == {"app": "from:env", "database": "orders"}


def test_errors_of_the_sdk_have_the_codes_of_check() -> None:
    rejection = Answer("REJECTED_BY_RATIO", admitted=False, reason="")
    assert exit_code_of_error(WaitedTooLong("x", rejection)) == 11
    assert exit_code_of_error(ThrottlerUnavailable("x")) == 20
