"""R98, R163: operators' rules act on statements inside Postgres, by who their client is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from headgate.budgets.identity import (
    IdentitySource,
    IdentityTerms,
    ServerRules,
    SourceKind,
    TagTrust,
    gates_of,
)
from headgate.budgets.meter import decisions_of
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.meter import RegionMeter
from headgate.budgets.readings import ClientTally
from headgate.check.model import Verdict
from headgate.integrations.sqlcommenter import sign_tags
from headgate.rules.matching import Kind, Rule, RuleBook
from tests.pg.conftest import where_versions_differ
from tests.pg.gate import Gate, Row, budget, detail, tagged

pytestmark = where_versions_differ
SECRET = b"0123456789abcdef"
HOUR_S = 3600.0


def rule(target: str, kind: Kind = Kind.HOLD, **settings: object) -> Rule:
    return Rule(f"r-{target}", target, kind=kind, **settings)  # type: ignore[arg-type]


def publish(
    gate: Gate, *rules: Rule, budgets: tuple[Row, ...] = (), identity: IdentityTerms | None = None
) -> RuleBook:
    book = RuleBook(rules)
    ruling = ServerRules(identity or IdentityTerms(), gates_of(book, "main", time.time()))
    gate.publish_policy(replace(parse_policy({"budgets": list(budgets)}), ruling=ruling))
    return book


def held(run: Callable[[], object]) -> psycopg.errors.InsufficientResources:
    with pytest.raises(psycopg.errors.InsufficientResources) as caught:
        run()
    return caught.value


def tallies(gate: Gate) -> dict[str, ClientTally]:
    _, readings = RegionMeter(gate.server.traffic_dir).read_now()
    return dict(readings.clients)


class TestKinds:
    def test_a_hold_blocks_its_client_alone(self, gate: Gate) -> None:
        until = time.time() + HOUR_S
        publish(gate, rule("etl", expires_at=until, created_by="ann", reason="backfill"))
        with gate.app(application_name="nightly:etl") as etl, gate.app() as other:
            for run in (etl.execute, lambda text: etl.execute(text, prepare=True)):
                error = held(lambda run=run: run("SELECT 1"))  # type: ignore[misc]
            other.execute("SELECT 1")
            held(lambda: etl.execute("CREATE TABLE never (n int)"))
            held(lambda: etl.execute("SELECT 1; SELECT 2"))
        assert error.diag.message_primary == (
            '[HEADGATE] Traffic Control: client "nightly:etl": rule: rule r-etl throttles every '
            "statement of etl, set by ann: backfill"
        )
        said = detail(error)
        assert (said["client"], said["cause"], said["ratio"]) == ("nightly:etl", "rule", "1.000")
        assert 0 < int(said["retry_after_ms"]) <= HOUR_S * 1000

    def test_a_hold_ends_by_itself_and_by_being_lifted(self, gate: Gate) -> None:
        with gate.app(application_name="") as session:
            publish(gate, rule("app"))
            held(lambda: session.execute("SELECT 1"))
            publish(gate)
            session.execute("SELECT 1")
            publish(gate, rule("app", expires_at=time.time() + 0.2))
            while True:
                try:
                    session.execute("SELECT 1")
                    break
                except psycopg.errors.InsufficientResources:
                    time.sleep(0.05)

    def test_a_ratio_blocks_its_share(self, gate: Gate) -> None:
        publish(gate, rule("app", Kind.RATIO, ratio=0.5))
        blocked = 0
        with gate.app(application_name="") as session:
            for _ in range(200):
                try:
                    session.execute("SELECT 1")
                except psycopg.errors.InsufficientResources as error:
                    blocked += 1
                    assert detail(error)["ratio"] == "0.500"
        assert 60 < blocked < 140

    def test_an_exemption_beats_a_broader_hold(self, gate: Gate) -> None:
        publish(gate, rule("all"), rule("heartbeat", Kind.EXEMPT))
        with gate.app() as session:
            session.execute(b"SELECT 1 /*headgate_client='heartbeat'*/")
            held(lambda: session.execute(b"SELECT 1 /*headgate_client='etl'*/"))

    def test_a_rule_on_all_leaves_out_who_never_named_itself(self, gate: Gate) -> None:
        """Every session of production has a user: favoring a job must not throttle it."""
        publish(gate, rule("all", Kind.RATIO, ratio=1.0), rule("migration", Kind.RATIO))
        with gate.app(application_name="web") as web:
            web.execute("SELECT 1")
            held(lambda: web.execute(b"SELECT 1 /*headgate_client='etl'*/"))
            web.execute(b"SELECT 1 /*headgate_client='migration'*/")

    def test_the_most_specific_rule_decides(self, gate: Gate) -> None:
        publish(gate, rule("etl", Kind.EXEMPT), rule("nightly:etl"), rule("nightly", Kind.EXEMPT))
        with gate.app(application_name="etl:nightly") as two:
            held(lambda: two.execute("SELECT 1"))
        with gate.app(application_name="etl") as one:
            one.execute("SELECT 1")


class TestWho:
    @pytest.mark.parametrize(
        ("name", "text"), [("", "SELECT 1"), ("job", "SELECT 1 /*headgate_client='x:job'*/")]
    )
    def test_by_user_and_by_tag(self, gate: Gate, name: str, text: str) -> None:
        publish(gate, rule(name or "app"))
        with gate.app(application_name="") as session, gate.app("other") as other:
            held(lambda: session.execute(text.encode()))
            other.execute("SELECT 1")
            if name:
                session.execute("SELECT 1")

    def test_superusers_and_exempt_users_pass(self, gate: Gate) -> None:
        text = "SELECT 1 /*headgate_client='etl'*/"
        publish(gate, rule("etl"))
        gate.rows(text)
        book = RuleBook([rule("etl")])
        document = {"policy": {"exempt_usernames": ["app"]}, "budgets": []}
        ruling = ServerRules(IdentityTerms(), gates_of(book, "main", time.time()))
        gate.publish_policy(replace(parse_policy(document), ruling=ruling))
        with gate.app() as session:
            session.execute(text.encode())

    def test_a_transaction_that_has_begun_goes_on(self, gate: Gate) -> None:
        with gate.app(application_name="") as session:
            session.execute("BEGIN; SELECT 1")
            publish(gate, rule("app"))
            session.execute("SELECT 1")
            session.execute("COMMIT")
            held(lambda: session.execute("SELECT 1"))

    def test_decisions_are_counted_by_client(self, gate: Gate) -> None:
        """As a proxy reports them: the agent's log has them by client, verdict and cause."""
        before = tallies(gate)
        book = publish(gate, rule("etl"), budgets=(tagged("shut", job="x") | {"max_workers": 0},))
        with gate.app(application_name="web") as web, gate.app(application_name="etl") as etl:
            for _ in range(3):
                web.execute("SELECT 1")
            held(lambda: web.execute("SELECT 1 /*job='x'*/"))
            held(lambda: etl.execute("SELECT 1"))
        risen = {
            name: tally.since(before.get(name, ClientTally()))
            for name, tally in tallies(gate).items()
            if name in ("web", "etl")
        }
        assert risen == {"web": ClientTally(3, 1, 0, "shut"), "etl": ClientTally(0, 0, 1, "")}
        rows = {
            (row.check.identity.text, row.verdict, row.by): row.times
            for row in decisions_of(risen, "main", book, time.time())
        }
        assert rows == {
            ("web", Verdict.OK, ""): 3,
            ("web", Verdict.OVER_BUDGET, "budget:shut"): 1,
            ("etl", Verdict.ON_HOLD, "rule:r-etl"): 1,
        }


class TestTrust:
    """R149: bound and signed tags, as in the proxy."""

    def identity(self, *trusts: TagTrust) -> IdentityTerms:
        return IdentityTerms(
            (IdentitySource(SourceKind.TAG, "job"), IdentitySource(SourceKind.USER)),
            trusts,
            secret=SECRET,
        )

    def test_a_bound_tag_counts_from_its_users(self, gate: Gate) -> None:
        identity = self.identity(TagTrust("job", ("other",)))
        publish(gate, rule("app"), rule("spared", Kind.EXEMPT), identity=identity)
        text = "SELECT 1 /*job='spared'*/"
        with gate.app() as session:
            held(lambda: session.execute(text))
        publish(gate, rule("spared"), identity=identity, budgets=(tagged("t", job="spared"),))
        with gate.app() as session, gate.app("other") as other, gate.counting("t") as risen:
            session.execute(text)
            held(lambda: other.execute(text))
        assert risen["admitted"] == 0

    def test_a_signed_tag_counts_from_everybody(self, gate: Gate) -> None:
        publish(
            gate,
            identity=self.identity(TagTrust("job", (), signed=True)),
            budgets=(tagged("t", job="etl"), budget("rest", max_workers=1000)),
        )
        signed = _signed("SELECT 1", SECRET)
        with gate.app() as session, gate.app("other") as other, gate.counting("t") as risen:
            for _ in range(2):
                session.execute(signed)
            for forged in (
                b"SELECT 1 /*job='etl'*/",
                _signed("SELECT 1", b"another secret, of 16"),
                signed.replace(b"job='etl'", b"job='etl',more='1'"),
                _signed("SELECT 1", SECRET, lasts_s=-1),
            ):
                session.execute(forged)
            other.execute(signed)  # It vouches for the user app alone.
        assert risen["admitted"] == 2


def _signed(text: str, secret: bytes, lasts_s: float = 60.0) -> bytes:
    until_s = time.time() + lasts_s
    tags = sign_tags({"job": "etl"}, secret=secret, username="app", expires_unix_s=until_s)
    return f"{text} {tags.comment}".encode()
