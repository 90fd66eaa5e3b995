"""One policy, one meaning (R152): the extension in a server answers as the reference in Python
does, and so as both proxies (tests/proxy/live/test_same_meaning.py)."""

from __future__ import annotations

import psycopg

from headgate.budgets.model import Dialect
from tests.pg.conftest import where_versions_differ
from tests.pg.gate import Gate, Session
from tests.proxy.live.test_same_meaning import (
    BLOCKED_BY,
    NOT_RUN,
    STATEMENTS,
    Asked,
    expected,
    play_tags,
    policy,
)

pytestmark = where_versions_differ
USERS = ("app", "other")


def blocked_by(session: Session, text: str) -> str | None:
    try:
        psycopg.ClientCursor(session).execute(text)
    except psycopg.errors.InsufficientResources as error:
        found = BLOCKED_BY.search(str(error))
        assert found is not None, error
        return found[1]
    except psycopg.Error:
        return NOT_RUN
    return None


def by_extension(gate: Gate, asked: Asked) -> str | None:
    with gate.app(USERS[asked.user], application_name=asked.application) as session:
        return blocked_by(session, asked.text)


def test_the_extension_blocks_what_the_reference_blocks(gate: Gate) -> None:
    gate.publish(*policy(Dialect.POSTGRES, USERS))
    wanted = expected(Dialect.POSTGRES, USERS)
    assert [by_extension(gate, asked) for asked in STATEMENTS] == wanted


def test_the_vectors_of_tags_by_the_extension(gate: Gate) -> None:
    answers: list[str | None] = []
    with gate.app() as session:

        def run(text: str) -> str | None:
            answers.append(blocked_by(session, text))
            return answers[-1]

        play_tags(gate, "postgres", run)
    # Many are no SQL that a server would run; of the others some are blocked, and some are not.
    ran = [answer for answer in answers if answer != NOT_RUN]
    assert len(ran) >= 10 and None in ran and len(set(ran)) >= 5
