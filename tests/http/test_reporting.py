"""POST /v1/reports: what the SDK writes is read, what nobody should write is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.base.names import Scope
from headgate.check.model import Verdict
from headgate.check.snapshot import Counted
from headgate.check.snapshot_api import MAX_ROWS, MAX_ROWS_BYTES, encode_report, fitting
from tests.builders import check
from tests.http.serving import Served
from tests.http.talk import Reply

ME = "9f86d081884c7d65"


def post(served: Served, body: bytes | dict[str, Any]) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return served.ask("POST", "/v1/reports", body=content, content_type="application/json")


def rows(app: str, *found: tuple[Verdict, int, str]) -> list[Counted]:
    return [Counted(check(app), verdict, by, times) for verdict, times, by in found]


def test_what_the_sdk_writes_is_counted_once(served: Served) -> None:
    made = rows("sdk:a", (Verdict.OK, 7, ""), (Verdict.THRESHOLD_EXCEEDED, 2, "shard/lag"))
    body = encode_report(ME, 1, made)
    assert post(served, body).json == {"batch": 1, "taken": True}
    assert post(served, body).json == {"batch": 1, "taken": False}
    assert (served.counted("sdk:a", "OK"), served.counted("sdk:a")) == (7, 9)


def test_every_kind_of_check_and_verdict_is_taken(served: Served) -> None:
    named = check("sdk:b", "lag", "shard/pool_usage", scope=Scope.SHARD)
    read = check("sdk:b", "lag")._replace(read_threshold=2.5)
    made = [Counted(one, verdict, "rule:r-1", 1) for one in (named, read) for verdict in Verdict]
    assert post(served, encode_report(ME + "00", 1, made)).status == 200
    assert served.counted("sdk:b") == 2 * len(Verdict)


def test_as_many_rows_as_fit_are_put_into_one_batch(served: Served) -> None:
    many = [Counted(check(f"c{n}"), Verdict.OK, "", 1) for n in range(300)]
    assert fitting(many) == MAX_ROWS
    long = [Counted(check("ü" * 120), Verdict.OK, "", 1, reason="ü" * 500) for _ in range(100)]
    some = long[: fitting(long)]
    assert 0 < len(some) < 100
    body = encode_report(ME + "11", 1, some)
    assert len(body) < MAX_ROWS_BYTES + 1000
    assert post(served, body).status == 200


GOOD = {"app": "etl", "database": "main", "verdict": "OK", "times": 1}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "instance"),
        ({"instance": "me", "batch": 1, "rows": [GOOD]}, "instance"),
        ({"instance": ME, "batch": 0, "rows": [GOOD]}, "batch"),
        ({"instance": ME, "batch": 1, "rows": []}, "rows"),
        ({"instance": ME, "batch": 1, "rows": [GOOD] * (MAX_ROWS + 1)}, "rows"),
        ({"instance": ME, "batch": 1, "rows": [GOOD | {"times": 0}]}, "times"),
        ({"instance": ME, "batch": 1, "rows": [GOOD | {"verdict": "MAYBE"}]}, "MAYBE"),
        ({"instance": ME, "batch": 1, "rows": [GOOD | {"by": "x y"}]}, "by"),
        ({"instance": ME, "batch": 1, "rows": [GOOD | {"last_s_ago": -1}]}, "last_s_ago"),
        ({"instance": ME, "batch": 1, "rows": [GOOD | {"app": "a b"}]}, "client name"),
        ({"instance": ME, "batch": 1, "rows": [GOOD | {"cause": "?"}]}, "cause"),
    ],
)
def test_what_cannot_be_counted_is_rejected_whole(
    served: Served, body: dict[str, Any], told: str
) -> None:
    before = served.counted("etl")
    reply = post(served, body)
    assert reply.status == 400 and told in reply.json["detail"]
    assert served.counted("etl") == before


def test_only_json_is_taken(served: Served) -> None:
    assert served.ask("POST", "/v1/reports", body=b"{}", content_type="text/plain").status == 415
