"""What a process decided locally is reported whole, whatever names it makes up (R68, R69)."""

from __future__ import annotations

from headgate.base.names import parse_identity
from headgate.check.model import Check, Verdict
from headgate.client.local_ledger import MAX_CROWD_ROWS, MAX_ROWS, Key, LocalLedger


def key(client: str, verdict: Verdict = Verdict.OK, by: str = "") -> Key:
    return 7, Check(parse_identity(client), "main"), verdict, by


def told(ledger: LocalLedger) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, check, _, _), row in ledger._rows.items():
        found[check.identity.text] = found.get(check.identity.text, 0) + row.times
    return found


def test_beyond_the_bound_names_collapse_towards_their_levels() -> None:
    ledger = LocalLedger()
    for number in range(MAX_ROWS + 500):
        ledger.add(key(f"u{number}:etl:nightly"), 1.0)
    assert told(ledger)["other:etl:nightly"] == 500
    assert len(told(ledger)) == MAX_ROWS + 1


def test_rows_are_bounded_when_levels_are_made_up_too() -> None:
    ledger = LocalLedger()
    for number in range(3 * MAX_ROWS):
        rejected = key(f"u{number}:v{number}", Verdict.THRESHOLD_EXCEEDED, f"m{number}")
        ledger.add(rejected, 1.0)
    assert sum(told(ledger).values()) == 3 * MAX_ROWS
    assert len(ledger._rows) <= MAX_ROWS + MAX_CROWD_ROWS + 1
