"""Messages between the agents of a shard, as JSON.   peers/ ◄──bytes──► shard/routes

Monotonic times are never sent: each value has its age, and the receiver dates it by its own clock,
never newer than it can be. Agents of different versions work together: an unknown field is
ignored, and an unknown word is never taken for health.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec

from headgate.check.model import Activity
from headgate.errors import InvalidName, InvalidRequest, PeerFailed
from headgate.metrics.samples import Absent, Cause, Instant, Reading, Sample, reading_of
from headgate.shard.model import Pull, Pulled
from headgate.shard.topology import Downstream, MemberReport, Role, RoleSeen

VERSION = 1
MAX_METRICS = 256
MAX_DOWNSTREAMS = 256
MAX_LABELS = 16
MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 255
MAX_DETAIL_CHARS = 500
MAX_URL_CHARS = 512
MAX_WAIT_S = 60.0
MAX_AGE_S = 1e9
MAX_COUNT = 2**63 - 1
_MAX_PORT = 65535
_MAX_WALL_S = 1e11

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
_Detail = Annotated[str, msgspec.Meta(max_length=MAX_DETAIL_CHARS)]
_Url = Annotated[str, msgspec.Meta(max_length=MAX_URL_CHARS)]
_Age = Annotated[float, msgspec.Meta(ge=0, le=MAX_AGE_S)]
_Skew = Annotated[float, msgspec.Meta(ge=-_MAX_WALL_S, le=_MAX_WALL_S)]
_Wall = Annotated[float, msgspec.Meta(ge=-_MAX_WALL_S, le=_MAX_WALL_S)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=_MAX_PORT)]
_Version = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]

_CAUSES = {cause.value: cause for cause in Cause}
_ROLES = {role.value: role for role in Role}
_ACTIVITIES = {activity.value: activity for activity in Activity}


class Skew(NamedTuple):
    """The other agent's wall clock against ours, as last measured."""

    wall_ahead_s: float
    error_s: float


# --- documents -----------------------------------------------------------------------------


class DownstreamDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    name: _Text = ""
    host: _Text = ""
    port: _Port | None = None
    bytes_behind: _Count | None = None


class RoleDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    role: _Word
    age_s: _Age
    """Age of what the server reported."""
    cluster: _Text = ""
    """As the server reports it; empty: it has no name for it."""
    term: _Count | None = None
    server_id: _Text = ""
    upstream_id: _Text = ""
    upstream: _Text = ""
    downstream: Annotated[list[DownstreamDoc], msgspec.Meta(max_length=MAX_DOWNSTREAMS)] = []
    clock_ahead_s: _Skew | None = None


class SampleDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    value: float
    age_s: _Age
    cause: _Word | None = None
    """What the value is based on, if the probe knows; null: it does not."""
    detail: _Detail = ""


class UnavailableDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    cause: _Word
    for_s: _Age
    detail: _Detail = ""


_ByMetric = msgspec.Meta(max_length=MAX_METRICS)


class PullDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """`POST /v1/peer/pull`: the request of a primary's agent to a member's."""

    version: _Version
    shard: _Name
    database: _Name
    sender: _Name
    activity: _Word
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]
    """How long the answer may be delayed while nothing changes."""
    sent_wall_s: _Wall
    """The sender's wall clock when it sent this."""
    url: _Url = ""
    role: RoleDoc | None = None
    """What the sender's server reports of its role; null: not known."""
    wall_ahead_s: _Skew | None = None
    """The receiving agent's wall clock minus the sender's, as last measured."""
    wall_error_s: _Age = 0.0
    clock_ahead_s: _Skew | None = None
    clock_error_s: _Age = 0.0


class ReportDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member's agent answers."""

    version: _Version
    name: _Name
    sent_wall_s: _Wall
    """Its wall clock when it sent this."""
    held_s: _Age
    """How long it delayed the answer, by its own monotonic clock."""
    activity: _Word
    role: RoleDoc | None = None
    """What its server reports of its role; null: not known."""
    role_unavailable: UnavailableDoc | None = None
    readings: Annotated[dict[_Name, SampleDoc], _ByMetric] = {}
    unavailable: Annotated[dict[_Name, UnavailableDoc], _ByMetric] = {}
    """Metrics without a value, and why."""
    labels: Annotated[dict[_Text, _Text], msgspec.Meta(max_length=MAX_LABELS)] = {}
    checked_s_ago: _Age | None = None
    url: _Url = ""


class WakeDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """`POST /v1/peer/wake`: a member's agent wants beats of its primary, whose host wakes."""

    version: _Version
    shard: _Name
    database: _Name
    sender: _Name


_encode = msgspec.json.Encoder().encode
_decode_pull = msgspec.json.Decoder(PullDoc).decode
_decode_wake = msgspec.json.Decoder(WakeDoc).decode
_decode_report = msgspec.json.Decoder(ReportDoc).decode
# What cannot be decoded; a lone surrogate is a ValueError, deep nesting a RecursionError.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# --- telling -------------------------------------------------------------------------------


def encode_pull(pull: Pull, *, now: Instant, skew: Skew | None = None) -> bytes:
    ahead_s, error_s = skew if skew is not None else (None, 0.0)
    return _encode(
        PullDoc(
            version=VERSION,
            shard=pull.shard,
            database=pull.database,
            sender=pull.sender,
            activity=pull.activity.value,
            wait_s=min(max(0.0, pull.wait_s), MAX_WAIT_S),
            sent_wall_s=now.wall_s,
            url=pull.url,
            role=_role_doc(pull.role, now.mono_s) if pull.role else None,
            wall_ahead_s=ahead_s,
            wall_error_s=error_s,
            clock_ahead_s=_finite(pull.clock_ahead_s),
            clock_error_s=_age(pull.clock_error_s),
        )
    )


def encode_report(report: MemberReport, *, received: Instant, now: Instant) -> bytes:
    """`received`: when the question came; `now`: as the answer leaves."""
    samples, absent = _reading_docs(report.readings, now.mono_s)
    return _encode(
        ReportDoc(
            version=VERSION,
            name=report.name,
            sent_wall_s=now.wall_s,
            held_s=_age(now.mono_s - received.mono_s),
            activity=report.activity.value,
            role=_role_doc(report.role, now.mono_s, MAX_DOWNSTREAMS) if report.role else None,
            role_unavailable=_absent_doc(report.role_unavailable, now.mono_s)
            if report.role_unavailable
            else None,
            readings=samples,
            unavailable=absent,
            labels={_clip(k): _clip(v) for k, v in islice(report.labels.items(), MAX_LABELS)},
            checked_s_ago=None if report.checked_s_ago is None else _age(report.checked_s_ago),
            url=report.url,
        )
    )


def encode_wake(shard: str, database: str, sender: str) -> bytes:
    return _encode(WakeDoc(VERSION, shard, database, sender))


def _reading_docs(
    readings: Mapping[str, Reading], now_s: float
) -> tuple[dict[str, SampleDoc], dict[str, UnavailableDoc]]:
    samples: dict[str, SampleDoc] = {}
    absent: dict[str, UnavailableDoc] = {}
    for metric, reading in islice(readings.items(), MAX_METRICS):
        told = _measurement(reading) if isinstance(reading, Sample) else reading
        if isinstance(told, Sample):
            samples[metric] = _sample_doc(told, now_s)
        else:
            absent[metric] = _absent_doc(told, now_s)
    return samples, absent


def _measurement(sample: Sample) -> Reading:
    """JSON has no NaN: it would leave as null, and come back as anything."""
    if 0 <= sample.value < math.inf:
        return sample
    return reading_of(sample.value, taken_at=sample.taken_at)


def _sample_doc(sample: Sample, now_s: float) -> SampleDoc:
    cause = sample.cause.value if sample.cause else None
    detail = _clip(sample.detail, MAX_DETAIL_CHARS)
    return SampleDoc(sample.value, _age(now_s - sample.taken_at), cause, detail)


def _absent_doc(absent: Absent, now_s: float) -> UnavailableDoc:
    detail = _clip(absent.detail, MAX_DETAIL_CHARS)
    return UnavailableDoc(absent.cause.value, _age(now_s - absent.at), detail)


def _role_doc(seen: RoleSeen, now_s: float, downstreams: int = 0) -> RoleDoc:
    """A pull leaves out who follows the sender: that is for its own agent, and long."""
    return RoleDoc(
        role=seen.role.value,
        age_s=_age(now_s - seen.taken_at),
        cluster=_clip(seen.cluster),
        term=seen.term,
        server_id=_clip(seen.server_id),
        upstream_id=_clip(seen.upstream_id),
        upstream=_clip(seen.upstream),
        downstream=[_downstream_doc(d) for d in seen.downstream[:downstreams]],
        clock_ahead_s=_finite(seen.clock_ahead_s),
    )


def _downstream_doc(seen: Downstream) -> DownstreamDoc:
    port, behind = seen.port, seen.bytes_behind
    return DownstreamDoc(
        _clip(seen.name),
        _clip(seen.host),
        port if port is not None and 0 <= port <= _MAX_PORT else None,
        behind if behind is not None and 0 <= behind <= MAX_COUNT else None,
    )


def _age(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_AGE_S)


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and abs(seconds) <= _MAX_WALL_S else None


def _clip(text: str, most: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# --- hearing -------------------------------------------------------------------------------


def decode_pull(body: bytes, *, received: Instant) -> Pull:
    """Or InvalidRequest. A question that lay about before it was read is that much older."""
    try:
        doc = _decode_pull(body)
        _expect_names(doc.shard, doc.database, doc.sender)
    except _UNREADABLE as error:
        raise InvalidRequest(f"the body is not a pull: {error}") from None
    role, _ = _role(doc.role, received.mono_s - _late_s(doc, received))
    return Pull(
        shard=doc.shard,
        database=doc.database,
        sender=doc.sender,
        url=doc.url,
        role=role,
        activity=_activity(doc.activity),
        wait_s=doc.wait_s,
        clock_ahead_s=doc.clock_ahead_s,
        clock_error_s=doc.clock_error_s,
    )


def _late_s(doc: PullDoc, received: Instant) -> float:
    """How long it was under way at most, as far as the clocks have been compared: one that
    waited in the buffers of a stopped process must not make its sender's role look fresh."""
    if doc.wall_ahead_s is None:
        return 0.0
    late_s = received.wall_s - doc.wall_ahead_s - doc.sent_wall_s
    return max(0.0, late_s) + doc.wall_error_s


def decode_wake(body: bytes) -> WakeDoc:
    try:
        doc = _decode_wake(body)
        _expect_names(doc.shard, doc.database, doc.sender)
    except _UNREADABLE as error:
        raise InvalidRequest(f"the body is not a wake-up call: {error}") from None
    return doc


def decode_report(body: bytes, *, sent: Instant, received: Instant) -> Pulled:
    """Or PeerFailed. `sent` and `received`: the exchange on our clocks.

    Ages count from the earliest moment at which the answer can have left: a whole round trip
    before it came. As in NTP, the clocks are compared half-way through it; the time for which
    the answer was held falls out, and a clock that is set meanwhile does no harm.
    """
    try:
        doc = _decode_report(body)
        _expect_names(doc.name)
    except _UNREADABLE as error:
        raise PeerFailed(Cause.INVALID, f"did not answer with a report: {error}") from None
    trip_s = max(0.0, received.mono_s - sent.mono_s - doc.held_s)
    ahead_s = doc.sent_wall_s + trip_s / 2 - received.wall_s
    return Pulled(_report(doc, received.mono_s - trip_s), ahead_s, trip_s / 2)


def _expect_names(*names: str) -> None:
    """They are shown and logged as they are."""
    for name in names:
        if not name.isprintable():
            raise msgspec.ValidationError(f"a name that cannot be printed: {name!r}")


def _report(doc: ReportDoc, left_at: float) -> MemberReport:
    role, role_unavailable = _role(doc.role, left_at)
    if role_unavailable is None and doc.role_unavailable is not None:
        role_unavailable = _absent(doc.role_unavailable, left_at)
    readings: dict[str, Reading] = {
        metric: _sample(sample, left_at) for metric, sample in doc.readings.items()
    }
    for metric, absent in doc.unavailable.items():
        readings[metric] = _absent(absent, left_at)
    return MemberReport(
        name=doc.name,
        at=left_at,
        role=role,
        role_unavailable=role_unavailable,
        readings=readings,
        labels=doc.labels,
        activity=_activity(doc.activity),
        checked_s_ago=doc.checked_s_ago,
        url=doc.url,
    )


def _sample(doc: SampleDoc, left_at: float) -> Reading:
    value, taken_at = doc.value, left_at - doc.age_s
    if not 0 <= value < math.inf:
        return Absent(Cause.INVALID, f"the agent reported {value:g}", taken_at)
    if doc.cause is None:
        return Sample(value, taken_at, None, doc.detail)
    cause = _CAUSES.get(doc.cause)
    # The cause of a value is no reason to doubt it, known word or not.
    detail = doc.detail if cause else _unknown(doc.cause, doc.detail)
    return Sample(value, taken_at, cause, detail)


def _absent(doc: UnavailableDoc, left_at: float) -> Absent:
    cause = _CAUSES.get(doc.cause)
    if cause is None:
        return Absent(Cause.FAILED, _unknown(doc.cause, doc.detail), left_at - doc.for_s)
    return Absent(cause, doc.detail, left_at - doc.for_s)


def _unknown(word: str, detail: str) -> str:
    return f"{word}: {detail}" if detail else word


def _role(doc: RoleDoc | None, left_at: float) -> tuple[RoleSeen | None, Absent | None]:
    if doc is None:
        return None, None
    role, taken_at = _ROLES.get(doc.role), left_at - doc.age_s
    if role is None:
        detail = f"its role is {doc.role!r}, which this agent's version does not know"
        return None, Absent(Cause.FAILED, detail, taken_at)
    seen = RoleSeen(
        role=role,
        taken_at=taken_at,
        cluster=doc.cluster,
        term=doc.term,
        server_id=doc.server_id,
        upstream_id=doc.upstream_id,
        upstream=doc.upstream,
        downstream=tuple(_downstream(d) for d in doc.downstream) if doc.downstream else (),
        clock_ahead_s=doc.clock_ahead_s,
    )
    return seen, None


def _downstream(doc: DownstreamDoc) -> Downstream:
    return Downstream(doc.name, doc.host, doc.port, doc.bytes_behind)


def _activity(word: str) -> Activity:
    """One that is not known is taken for the busiest: nobody is left to sleep by mistake."""
    return _ACTIVITIES.get(word, Activity.AWAKE)


# --- where another agent is ----------------------------------------------------------------

_HEX = "[0-9A-Fa-f]{1,4}"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV6 = [
    f"({_HEX}:){{7}}{_HEX}",
    f"({_HEX}:){{1,7}}:",
    *(f"({_HEX}:){{1,{7 - n}}}(:{_HEX}){{1,{n}}}" for n in range(1, 7)),
    f":((:{_HEX}){{1,7}}|:)",
    rf"::([Ff]{{4}}:)?({_BYTE}\.){{3}}{_BYTE}",
]
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_URL = rf"https?://([A-Za-z0-9._-]+|\[({'|'.join(_IPV6)})\])(:(0*({_PORT}))?)?/?"
URL_SCHEMA = {"pattern": f"^{_URL}$", "maxLength": MAX_URL_CHARS}
_DEFAULT_PORTS = {"http": 80, "https": 443}


class PeerUrl(NamedTuple):
    text: str
    """Without a slash at its end; the part behind the scheme is the Host header."""
    tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        return self.text.partition("://")[2]


def parse_peer_url(text: str) -> PeerUrl:
    """Or InvalidName, which does not repeat what may hold a secret."""
    if len(text) > MAX_URL_CHARS or not re.fullmatch(_URL, text):
        raise InvalidName(
            "the url of another agent must be like https://db1:8087, without a path, user or "
            "password (a token belongs in token_file of [peers])"
        )
    url = urlsplit(text)
    assert url.hostname, "the pattern has one"
    port = _DEFAULT_PORTS[url.scheme] if url.port is None else url.port
    return PeerUrl(text.rstrip("/"), url.scheme == "https", url.hostname, port)
