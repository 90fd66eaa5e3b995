"""What agents tell each other: all of it arrives, nothing gets fresher, nothing turns into 0."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.check.model import Activity
from headgate.errors import InvalidName, InvalidRequest, PeerFailed
from headgate.metrics.samples import Absent, Cause, Instant, Reading, Sample
from headgate.shard import peers_api as peers
from headgate.shard.model import Pull, Pulled
from headgate.shard.peers_api import (
    Skew,
    decode_pull,
    decode_report,
    decode_wake,
    encode_pull,
    encode_report,
    encode_wake,
    parse_peer_url,
)
from headgate.shard.topology import Downstream, MemberReport, Role, RoleSeen

# The other agent's clocks have nothing in common with ours.
THERE = Instant(mono_s=50_000.0, wall_s=1_700_000_030.0)
HERE = Instant(mono_s=70.0, wall_s=1_700_000_000.0)
ROLE = RoleSeen(Role.PRIMARY, THERE.mono_s - 0.25, cluster="7301", term=3, clock_ahead_s=-0.5)
REPORT = MemberReport(
    "db-b",
    THERE.mono_s,
    ROLE,
    readings={
        "lag": Sample(1.5, THERE.mono_s - 0.1, Cause.REPLICATION_STOPPED, "paused"),
        "threads_running": Absent(Cause.TIMED_OUT, "no answer in 0.5 s", THERE.mono_s - 2),
    },
    labels={"region": "eu"},
    activity=Activity.IDLE,
    checked_s_ago=3.0,
    url="https://db-b:8087",
)
PULL = Pull("commerce/-80", "main", "db-a", "https://db-a:8087", ROLE, Activity.AWAKE, 0.25)


def later(moment: Instant, seconds: float) -> Instant:
    return Instant(moment.mono_s + seconds, moment.wall_s + seconds)


def heard(report: MemberReport = REPORT, *, held_s: float = 0.0, trip_s: float = 0.0) -> Pulled:
    body = encode_report(report, received=THERE, now=later(THERE, held_s))
    return decode_report(body, sent=HERE, received=later(HERE, held_s + trip_s))


def changed(document: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(document), **fields}).encode()


def report_body(**fields: Any) -> bytes:
    return changed(encode_report(REPORT, received=THERE, now=THERE), **fields)


def heard_of(body: bytes) -> MemberReport:
    return decode_report(body, sent=HERE, received=HERE).report


# --- all of it arrives ---------------------------------------------------------------------

texts = st.text(max_size=40)
ages = st.floats(0, 1e6)
skews = st.none() | st.floats(-1e6, 1e6)
counts = st.none() | st.integers(0, 2**63 - 1)
printable = st.just(" ") | st.characters(exclude_categories=("C", "Z"))
names = st.text(printable, min_size=1, max_size=40)
downstreams = st.builds(Downstream, texts, texts, st.none() | st.integers(0, 65535), counts)
roles = st.builds(
    RoleSeen,
    st.sampled_from(Role),
    st.just(THERE.mono_s),
    texts,
    counts,
    texts,
    texts,
    texts,
    st.lists(downstreams, max_size=4).map(tuple),
    skews,
)
readings = st.one_of(
    st.builds(
        Sample,
        st.floats(0, 1e300),
        st.just(THERE.mono_s),
        st.none() | st.sampled_from(Cause),
        texts,
    ),
    st.builds(Absent, st.sampled_from(Cause), texts, st.just(THERE.mono_s)),
)
reports = st.builds(
    MemberReport,
    name=names,
    at=st.just(THERE.mono_s),
    role=st.none() | roles,
    role_unavailable=st.none()
    | st.builds(Absent, st.sampled_from(Cause), texts, st.just(THERE.mono_s)),
    readings=st.dictionaries(names, readings, max_size=8),
    labels=st.dictionaries(texts, texts, max_size=16),
    activity=st.sampled_from(Activity),
    checked_s_ago=st.none() | ages,
    url=texts,
)
pulls = st.builds(
    Pull, names, names, names, texts, st.none() | roles, st.sampled_from(Activity),
    st.floats(0, 60), skews, ages,
)  # fmt: skip


def at(reading: Reading, moment: float) -> Reading:
    if isinstance(reading, Sample):
        return reading._replace(taken_at=moment)
    return reading._replace(at=moment)


@given(reports)
def test_a_report_arrives_as_it_left(report: MemberReport) -> None:
    mono_s = HERE.mono_s
    assert heard(report).report == replace(
        report,
        at=mono_s,
        role=report.role and replace(report.role, taken_at=mono_s),
        role_unavailable=report.role_unavailable and report.role_unavailable._replace(at=mono_s),
        readings={name: at(reading, mono_s) for name, reading in report.readings.items()},
    )


@given(pulls)
def test_a_pull_arrives_as_it_left(pull: Pull) -> None:
    body = encode_pull(pull, now=THERE)
    # Who follows the sender is for its own agent; it would make a pull long.
    role = pull.role and replace(pull.role, taken_at=HERE.mono_s, downstream=())
    assert decode_pull(body, received=HERE) == replace(pull, role=role)


def test_a_wake_up_call_arrives_as_it_left() -> None:
    call = decode_wake(encode_wake("commerce/-80", "main", "db-b"))
    assert (call.shard, call.database, call.sender) == ("commerce/-80", "main", "db-b")


def test_the_version_is_sent() -> None:
    for body in (
        encode_pull(PULL, now=THERE),
        encode_report(REPORT, received=THERE, now=THERE),
        encode_wake("s", "d", "m"),
    ):
        assert json.loads(body)["version"] == 1


# --- nothing gets fresher ------------------------------------------------------------------


def test_a_report_is_dated_by_the_receivers_clock_and_never_fresher_than_it_can_be() -> None:
    """A whole round trip is taken off, not half; the time it was held is not counted twice."""
    report = heard(held_s=0.2, trip_s=0.05).report
    left_at = HERE.mono_s + 0.2
    assert report.at == pytest.approx(left_at)
    assert report.role is not None and report.role.taken_at == pytest.approx(left_at - 0.2 - 0.25)
    lag, threads = report.readings["lag"], report.readings["threads_running"]
    assert isinstance(lag, Sample) and lag.taken_at == pytest.approx(left_at - 0.2 - 0.1)
    assert isinstance(threads, Absent) and threads.at == pytest.approx(left_at - 0.2 - 2)


@given(trip_s=st.floats(0, 10), held_s=st.floats(0, 60), ahead_s=st.floats(-1e5, 1e5),
       share=st.floats(0, 1))  # fmt: skip
def test_the_clocks_agree_within_the_stated_error(
    trip_s: float, held_s: float, ahead_s: float, share: float
) -> None:
    """However the round trip is split between the ways, and however long it was held."""
    arrived = HERE.wall_s + ahead_s + trip_s * share
    received = Instant(9_000.0, arrived)
    body = encode_report(REPORT, received=received, now=later(received, held_s))
    pulled = decode_report(body, sent=HERE, received=later(HERE, trip_s + held_s))
    assert pulled.error_s == pytest.approx(trip_s / 2, abs=1e-6)
    assert abs(pulled.wall_ahead_s - ahead_s) <= pulled.error_s + 1e-3


def test_a_clock_that_is_set_while_the_answer_waits_does_no_harm() -> None:
    received, left = THERE, Instant(THERE.mono_s + 5, THERE.wall_s + 3605)
    body = encode_report(REPORT, received=received, now=left)
    pulled = decode_report(body, sent=HERE, received=later(HERE, 5.01))
    assert pulled.wall_ahead_s == pytest.approx(30 + 3600, abs=0.02)
    assert pulled.error_s == pytest.approx(0.005)


def test_an_answer_that_waited_longer_than_it_took_is_no_younger_than_now() -> None:
    body = encode_report(REPORT, received=THERE, now=later(THERE, 5.001))
    pulled = decode_report(body, sent=HERE, received=later(HERE, 5.0))
    assert (pulled.report.at, pulled.error_s) == (HERE.mono_s + 5, 0.0)


def test_a_pull_that_lay_in_a_stopped_process_does_not_make_its_sender_look_fresh() -> None:
    body = encode_pull(PULL, now=THERE, skew=Skew(wall_ahead_s=-30.0, error_s=0.001))
    pull = decode_pull(body, received=later(HERE, 60))
    assert pull.role is not None
    assert pull.role.taken_at == pytest.approx(HERE.mono_s - 0.25 - 0.001)
    unmeasured = decode_pull(encode_pull(PULL, now=THERE), received=later(HERE, 60))
    assert unmeasured.role is not None
    assert unmeasured.role.taken_at == pytest.approx(HERE.mono_s + 60 - 0.25)


# --- nothing turns into 0 ------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, -1e-9])
def test_what_is_no_measurement_arrives_as_unavailable(value: float) -> None:
    """R9"""
    told = heard(replace(REPORT, readings={"lag": Sample(value, THERE.mono_s - 1)})).report
    lag = told.readings["lag"]
    assert isinstance(lag, Absent) and lag.cause is Cause.INVALID
    assert lag.at == HERE.mono_s - 1


def test_a_negative_value_from_an_agent_that_does_send_it_is_unavailable() -> None:
    lag = heard_of(report_body(readings={"lag": {"value": -3, "age_s": 1}})).readings["lag"]
    assert lag == Absent(Cause.INVALID, "the agent reported -3", HERE.mono_s - 1)


def test_a_cause_of_a_later_version_is_never_a_value() -> None:
    """R156"""
    told = heard_of(
        report_body(
            readings={"lag": {"value": 4, "age_s": 1, "cause": "solar_flare", "detail": "x"}},
            unavailable={"disk": {"cause": "solar_flare", "for_s": 1, "detail": "since noon"}},
        )
    )
    assert told.readings["disk"] == Absent(Cause.FAILED, "solar_flare: since noon", HERE.mono_s - 1)
    # A value is a value, whatever stands behind it.
    assert told.readings["lag"] == Sample(4, HERE.mono_s - 1, None, "solar_flare: x")


def test_a_metric_that_is_sent_as_both_is_unavailable() -> None:
    told = heard_of(
        report_body(
            readings={"lag": {"value": 0, "age_s": 0}},
            unavailable={"lag": {"cause": "failed", "for_s": 0}},
        )
    )
    assert isinstance(told.readings["lag"], Absent)


def test_a_role_of_a_later_version_is_no_role() -> None:
    """R156"""
    told = heard_of(report_body(role={"role": "witness", "age_s": 1}))
    assert told.role is None and told.role_unavailable is not None
    assert (told.role_unavailable.cause, "witness" in told.role_unavailable.detail) == (
        Cause.FAILED,
        True,
    )


def test_an_activity_of_a_later_version_is_awake() -> None:
    """R156"""
    assert heard_of(report_body(activity="dozing")).activity is Activity.AWAKE


def test_fields_of_a_later_version_are_passed_over() -> None:
    """R156"""
    told = heard_of(report_body(version=9, moon={"phase": [1, 2]}))
    assert told == heard_of(report_body())
    pull = changed(encode_pull(PULL, now=THERE), version=9, moon="full")
    assert decode_pull(pull, received=HERE).shard == PULL.shard


# --- bounds --------------------------------------------------------------------------------

SAMPLE = {"value": 1, "age_s": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {"readings": {f"m{n}": SAMPLE for n in range(257)}},
        {"unavailable": {f"m{n}": {"cause": "failed", "for_s": 0} for n in range(257)}},
        {"readings": {"m" * 200: SAMPLE}},
        {"readings": {"lag": {"value": "1", "age_s": 0}}},
        {"readings": {"lag": {"value": None, "age_s": 0}}},
        {"readings": {"lag": {"value": True, "age_s": 0}}},
        {"readings": {"lag": {"value": 1, "age_s": -0.1}}},
        {"readings": {"lag": {"value": 1}}},
        {"readings": {"lag": {"value": 1, "age_s": 0, "detail": "x" * 501}}},
        {"labels": {f"l{n}": "" for n in range(17)}},
        {"labels": {"l": "x" * 256}},
        {"role": {"role": "primary", "age_s": 0, "downstream": [{}] * 257}},
        {"role": {"role": "primary", "age_s": -1}},
        {"role": {"role": "primary", "age_s": 0, "downstream": [{"port": 65536}]}},
        {"name": ""},
        {"name": "x" * 129},
        {"name": "db\x1b[2J"},
        {"url": "x" * 513},
        {"held_s": -1},
        {"sent_wall_s": 1e12},
        {"checked_s_ago": -1},
        {"version": 0},
        {"version": "1"},
    ],
    ids=lambda fields: f"{next(iter(fields))}:{str(fields)[-24:]}",
)
def test_a_report_out_of_bounds_is_rejected_whole(fields: dict[str, Any]) -> None:
    with pytest.raises(PeerFailed) as rejected:
        heard_of(report_body(**fields))
    assert rejected.value.cause is Cause.INVALID


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b"\xff", b'{"name": "\\ud800"}', b"[" * 100_000, b"NaN", b"<html>",
     report_body().replace(b"1.5", b"NaN"), report_body().replace(b"1.5", b"1e999")],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_garbage_is_no_report_and_no_pull(body: bytes) -> None:
    with pytest.raises(PeerFailed) as rejected:
        heard_of(body)
    assert rejected.value.cause is Cause.INVALID
    with pytest.raises(InvalidRequest):
        decode_pull(body, received=HERE)
    with pytest.raises(InvalidRequest):
        decode_wake(body)


@pytest.mark.parametrize(
    "fields",
    [{"wait_s": -1}, {"wait_s": 61}, {"wait_s": None}, {"shard": ""}, {"sender": 7},
     {"clock_error_s": -1}, {"sent_wall_s": "noon"}],
    ids=str,
)  # fmt: skip
def test_a_pull_out_of_bounds_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        decode_pull(changed(encode_pull(PULL, now=THERE), **fields), received=HERE)


def test_what_is_too_much_to_send_is_cut_to_what_is_taken() -> None:
    """A long error message must not cost the shard a member."""
    long = "x" * 10_000
    downstream = tuple(Downstream(long, long, 99_999, -1) for _ in range(300))
    role = replace(ROLE, upstream=long, downstream=downstream, clock_ahead_s=math.nan)
    noisy = replace(
        REPORT,
        role=role,
        readings={f"m{n}": Absent(Cause.FAILED, long, THERE.mono_s) for n in range(300)},
        labels={f"{n}{long}": long for n in range(20)},
    )
    told = heard(noisy).report
    assert (len(told.readings), len(told.labels)) == (peers.MAX_METRICS, peers.MAX_LABELS)
    assert told.role is not None and len(told.role.downstream) == peers.MAX_DOWNSTREAMS
    assert told.role.downstream[0].port is None and told.role.downstream[0].bytes_behind is None
    assert told.role.clock_ahead_s is None
    assert told.readings["m0"] == Absent(Cause.FAILED, "x" * 499 + "…", HERE.mono_s)
    asked = encode_pull(replace(PULL, role=role, wait_s=1e9), now=THERE)
    assert len(asked) < 4096, "it is sent four times a second to each member"
    assert decode_pull(asked, received=HERE).wait_s == peers.MAX_WAIT_S


# --- addresses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("https://db-b:8087", ("https://db-b:8087", True, "db-b", 8087)),
        ("http://db_b.internal:80/", ("http://db_b.internal:80", False, "db_b.internal", 80)),
        ("http://[::1]:8087", ("http://[::1]:8087", False, "::1", 8087)),
        ("http://[::FFFF:10.0.0.7]", ("http://[::FFFF:10.0.0.7]", False, "::ffff:10.0.0.7", 80)),
        ("https://db-b", ("https://db-b", True, "db-b", 443)),
        ("http://10.0.0.7", ("http://10.0.0.7", False, "10.0.0.7", 80)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, bool, str, int]) -> None:
    assert tuple(parse_peer_url(text)) == parsed
    assert parse_peer_url(text).authority == text.partition("://")[2].rstrip("/")


@pytest.mark.parametrize(
    "text",
    ["", "db-b:8087", "ftp://db-b", "https://", "https://:8087", "https://u:hunter2@db-b",
     "https://db-b/v1", "https://db-b?token=hunter2", "https://db-b:99999", "https://db-b:0",
     "https://db-b:Ie", "https://[::1", "https://[1::2::3]", "https://db-b[::1]", "https://db b",
     "https://db-b\r\nX: y", "https://" + "x" * 600],
)  # fmt: skip
def test_what_is_no_address_is_rejected_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidName) as rejected:
        parse_peer_url(text)
    assert "hunter2" not in str(rejected.value)
