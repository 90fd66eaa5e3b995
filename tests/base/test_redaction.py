"""What looks like a secret goes, and ordinary words stay."""

from __future__ import annotations

import pytest

from headgate.base.redaction import (
    Scrubber,
    hidden_faults,
    redacted,
    revealed,
    secrets_in,
    secrets_in_address,
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ALTER ROLE app PASSWORD 'it''s'", "ALTER ROLE app PASSWORD '…'"),
        ("ENCRYPTED PASSWORD E'a\\'b' LOGIN", "ENCRYPTED PASSWORD E'…' LOGIN"),
        ("create user x identified by 'abc' ", "create user x identified by '…' "),
        ("IDENTIFIED WITH sha2 AS 'abc'", "IDENTIFIED WITH sha2 AS '…'"),
        ("the password isn't there, and 'x' is", "the password isn't there, and 'x' is"),
        ('{"detail": "no password \'x"}', '{"detail": "no password \'x"}'),
    ],
)
def test_a_password_as_sql_writes_it(text: str, left: str) -> None:
    assert Scrubber([])(text) == left


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/services/T0AB12CD/B0AB12CD/xYz123",
        "http://127.0.0.1:9/hook/K3Y-of-it",
        "https://example.com/webhook/alerts/abcdefghijklmnopqrstuvwx",
    ],
)
def test_words_of_a_webhooks_path_are_no_secrets_and_its_keys_are(url: str) -> None:
    """Else `webhook_url` would become `web…_url`, and `headgate_alerts_total` another series."""
    scrub = Scrubber(secrets_in({"alerts": {"webhook_url": url}}))
    plain = '"webhook_url": "", "webhook_token_file": "", headgate_alerts_total services'
    assert scrub(plain) == plain
    assert url.rpartition("/")[2] not in scrub(f"posted to {url}, key {url.rpartition('/')[2]}")


def test_a_path_of_one_part_is_found_whole() -> None:
    assert "hooked/word" in set(secrets_in_address("https://h/hooked/word", whole_path=True))


METRIC = {
    "command": ["/usr/bin/lag", "--password", "hunter2"],
    "sql": "SELECT lag FROM dblink('host=a password=hunter2', 'x')",
    "url": "http://me:hunter2@host/lag?key=hunter2",
    "headers": {"Authorization": "hunter2"},
    "options": {"db_pwd": "hunter2", "api_token": "hunter2", "sslkey": "hunter2"},
    "threshold": 5,
}


def test_a_metric_shows_no_secret_whatever_it_is_called() -> None:
    shown_there = redacted(METRIC)
    assert "hunter2" not in repr(shown_there)
    assert shown_there["command"][0] == "/usr/bin/lag" and shown_there["threshold"] == 5
    assert revealed(shown_there, METRIC) == METRIC, "sent back as shown, it is what it was"


def test_no_placeholder_takes_the_place_of_a_secret() -> None:
    places = {fault.place for fault in hidden_faults(redacted(METRIC))}
    assert places == {
        "command",
        "sql",
        "url",
        "headers.Authorization",
        "options.db_pwd",
        "options.api_token",
        "options.sslkey",
    }
    assert hidden_faults({"description": "waits… and waits", "threshold": 5}) == []
