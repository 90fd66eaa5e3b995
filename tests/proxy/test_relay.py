"""What Python says reaches the relay's words, and what these say reaches Python."""

from __future__ import annotations

import socket
import struct
from ctypes import addressof, sizeof, string_at

import pytest

from headgate.budgets.compiled import compile_policy
from headgate.budgets.identity import (
    IdentitySource,
    IdentityTerms,
    SourceKind,
    TagTrust,
)
from headgate.budgets.parse import parse_policy
from headgate.errors import RelayFault
from headgate.proxy.handover import open_listening
from headgate.proxy.layout import HrEvent, HrGate
from headgate.proxy.memory import SharedMemory
from headgate.proxy.model import (
    Act,
    ListenTerms,
    ListenTls,
    TlsTerms,
)
from headgate.proxy.ports import (
    OTHERS,
    UNIDENTIFIED,
    ActCause,
    ClientGate,
    ClientKey,
    Release,
    ServerTarget,
    Targets,
)
from headgate.proxy.relay import (
    ACTS,
    NativeRelay,
    _decoded,
    gate_words,
    sockaddr,
    targets_words,
)
from tests.fixtures.eventually import eventually


def target(number: int = 1, **changes: object) -> ServerTarget:
    plain = {"name": f"db{number}", "address": "127.0.0.1", "port": 5432, "primary": True}
    return ServerTarget(number, **{**plain, "replica": False, **changes})  # type: ignore[arg-type]


def compiled(version: int, *budgets: dict[str, object]) -> bytes:
    return compile_policy(parse_policy({"budgets": list(budgets)}), version)


def test_acts_are_numbered_as_the_header_has_them() -> None:
    assert ACTS == {Act.PASS: 0, Act.WARN: 1, Act.DELAY: 2, Act.BLOCK: 3, Act.CLOSE: 4}


def test_a_gate_reaches_its_client_alone(relay: NativeRelay, memory: SharedMemory) -> None:
    nobody = relay.clients.all()[UNIDENTIFIED]
    assert (nobody.client.identity, nobody.told) == ("unidentified", False)
    gate = ClientGate(
        Act.DELAY, 0.25, cause=ActCause.HEALTH, max_delay_s=1.5, until_ms=5, reason="lag ü" * 90
    )
    relay.clients.put_gate(nobody.client, gate)
    words = HrGate()
    relay._library.hr_gate_get(memory.state_address, UNIDENTIFIED, words)
    assert (words.action, words.cause, words.max_delay_ms, words.until_ms) == (2, 3, 1500, 5)
    assert words.ratio == round(0.25 * 0xFFFFFFFF)
    assert words.reason.decode().startswith("lag ü"), "cut between characters"
    assert relay.clients.all()[UNIDENTIFIED].told
    relay.clients.put_gate(ClientKey(OTHERS, 12345, "somebody else's"), gate)
    assert not relay.clients.all()[OTHERS].told, "the place is another client's"


def test_a_gate_that_is_always_known_has_no_end() -> None:
    assert gate_words(ClientGate()).until_ms == 0


@pytest.mark.parametrize(
    ("release", "ns_per_unit", "burst_ns"),
    [
        (Release(), 0, 0),
        (Release(per_s=1000, burst=5), 1_000_000, 5_000_000),
        (Release(per_s=0), 2**62, 2**62),
    ],
)
def test_a_release_is_a_price_per_statement(
    relay: NativeRelay, release: Release, ns_per_unit: int, burst_ns: int
) -> None:
    relay.put_release(release)
    words = relay.memory.state.release
    assert (words.ns_per_unit, words.burst_ns) == (ns_per_unit, burst_ns)
    assert relay.released() == (0, 0)


def test_identity_reaches_the_relay(relay: NativeRelay) -> None:
    identity = IdentityTerms(
        (IdentitySource(SourceKind.TAG, "job"), IdentitySource(SourceKind.PATTERN)),
        (TagTrust("job", ("etl", "batch"), signed=True),),
        "priority",
        50,
        b"0123456789abcdef",
    )
    relay.put_identity(identity)


@pytest.mark.parametrize(
    ("address", "family"),
    [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("/run/x.sock", socket.AF_UNIX)],
)
def test_addresses_are_as_linux_has_them(address: str, family: int) -> None:
    raw = sockaddr(address, 5432)
    assert struct.unpack_from("=H", raw)[0] == family
    if family != socket.AF_UNIX:
        assert struct.unpack_from("!H", raw, 2)[0] == 5432


def test_a_name_is_no_address() -> None:
    with pytest.raises(RelayFault, match="neither an address nor the path"):
        sockaddr("db1", 5432)
    with pytest.raises(RelayFault, match="at most 107"):
        sockaddr("/" + "x" * 120, 0)


def test_targets_share_what_tls_they_have_in_common() -> None:
    tls = TlsTerms("require", ca="/ca.pem")
    words = targets_words(Targets((target(1, tls=tls), target(2, tls=tls), target(3))))
    assert [t.tls for t in words.target[:3]] == [1, 1, 0]
    assert (words.count, words.tls_count) == (3, 1)


def test_sixteen_servers_may_each_have_tls_of_their_own(relay: NativeRelay) -> None:
    many = tuple(target(n, tls=TlsTerms("require", name=f"db{n}")) for n in range(1, 17))
    relay.put_targets(Targets(many))
    assert [t.tls for t in targets_words(Targets(many)).target[:16]] == list(range(1, 17))


def test_too_many_targets_are_blocked_with_what_to_do() -> None:
    with pytest.raises(RelayFault, match="at most 64"):
        targets_words(Targets(tuple(target(n) for n in range(1, 66))))
    many = tuple(target(n, tls=TlsTerms("require", ca=f"/{n}")) for n in range(1, 66))
    with pytest.raises(RelayFault, match="different TLS settings"):
        targets_words(Targets(many[:20]))


def test_what_is_reported_lies_with_the_counters(relay: NativeRelay) -> None:
    """So that a process that takes the memory over goes on from there."""
    assert relay.clients.reported_at_s() is None
    nobody = relay.clients.all()[UNIDENTIFIED]
    assert nobody.reported == (0, (0,) * 8)
    counted = nobody._replace(admitted=7, blocked=(0, 1, 2, 3, 4, 5, 6, 7))
    relay.clients.put_reported([counted], 12.5)
    assert relay.clients.all()[UNIDENTIFIED].reported == (7, (0, 1, 2, 3, 4, 5, 6, 7))
    assert relay.clients.all()[OTHERS].reported == (0, (0,) * 8)
    assert relay.clients.reported_at_s() == 12.5


def test_blocked_targets_leave_the_last_ones(relay: NativeRelay) -> None:
    good = Targets((target(),))
    relay.put_targets(good)
    bad = Targets((target(2, tls=TlsTerms("verify-ca", ca="/no/such/file.pem")),))
    with pytest.raises(RelayFault, match="servers: "):
        relay.put_targets(bad)
    assert relay.targets == good


def test_a_listener_whose_certificate_is_missing_is_blocked(relay: NativeRelay) -> None:
    terms = ListenTerms("127.0.0.1", 0, tls=ListenTls.REQUIRE, cert="/no/cert", key="/no/key")
    with pytest.raises(RelayFault, match=r"listening on 127.0.0.1:0: .*cert"):
        relay.listen(open_listening("127.0.0.1", 0), terms)


def test_a_policy_is_taken_whole_or_not_at_all(relay: NativeRelay) -> None:
    assert relay.publish(compiled(5)) is None
    assert relay.memory.region.head().version == 5
    older = relay.publish(compiled(4, {"name": "x"}))
    assert older is not None and not older.again
    torn = relay.publish(compiled(6)[:-8])
    assert torn is not None and not torn.again
    assert relay.memory.region.head().version == 5
    assert relay.publish(compiled(4), force=True) is None


def test_sessions_are_seen_and_killed(relay: NativeRelay) -> None:
    sock = open_listening("127.0.0.1", 0)
    port = sock.getsockname()[1]
    relay.listen(sock, ListenTerms("127.0.0.1", port))
    relay.put_targets(Targets((target(),)))
    relay.start()
    with socket.create_connection(("127.0.0.1", port)) as client:
        (session,) = eventually(relay.sessions)
        assert session.phase == "start-up"
        assert session.peer == "{}:{}".format(*client.getsockname())
        assert not relay.kill(session.id + 1)
        assert relay.kill(session.id)
        eventually(lambda: not relay.sessions())
    assert relay.thread_counts()[0]["accepted"] == 1


def test_an_event_is_taken_apart() -> None:
    event = HrEvent(kind=3, number=7, by=1, user_length=3, database_length=4, budget_length=2,
                    reason_length=3, text_length=8, text_whole=1)  # fmt: skip
    text = b"app" + b"shop" + b"b1" + b"why" + b"SELECT 1"
    event.text[: len(text)] = list(text)
    found = _decoded(event)
    assert (found.username, found.database, found.budget) == ("app", "shop", "b1")
    assert (found.reason, found.text, found.by) == ("why", b"SELECT 1", ActCause.BUDGET)


def test_a_closed_relay_gives_back_its_seats(relay: NativeRelay) -> None:
    relay.start()
    eventually(relay.memory.region.seats)
    relay.close()
    assert relay.memory.region.seats() == []
    assert string_at(addressof(relay.memory.state), 8) == b"HGRELAYS"
    assert sizeof(HrEvent) > 8192
