"""Who gets into etcd, and what it says to those it rejects; with real members.

One cluster for all: it wants TLS, a certificate of each client, a user and a password.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.etcd import EtcdStore, load_access
from headgate.demo.servers import scratch_parent
from headgate.errors import InvalidSettings, OutcomeUnknown, StoreRejected, StoreUnavailable
from tests.fixtures.etcd import EtcdCluster
from tests.fixtures.eventually import DEADLINE_S
from tests.fleet.live.certificates import Authority, Pair

PREFIX = "/fleet/"


@dataclass(frozen=True, slots=True)
class Guarded:
    cluster: EtcdCluster
    authority: Authority
    folder: Path
    ours: Pair

    def password_file(self, text: str = "secret", name: str = "password") -> Path:
        path = self.folder / name
        path.write_text(f"{text}\n")
        return path

    def store(
        self,
        *,
        username: str = "agent",
        password_file: Path | None = None,
        cert: Pair | None = None,
        shows_certificate: bool = True,
        ca: Path | None = None,
        prefix: str = PREFIX,
        endpoints: list[str] | None = None,
    ) -> EtcdStore:
        pair = cert or self.ours
        access = load_access(
            username=username,
            password_file=(password_file or self.password_file()) if username else None,
            ca=ca or self.authority.path,
            cert=pair.cert if shows_certificate else None,
            key=pair.key if shows_certificate else None,
        )
        where = endpoints or self.cluster.endpoints
        return EtcdStore(where, access, prefix, timeout_s=DEADLINE_S, roll=lambda: 0.0)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not pytest's: root closes that one to the user who runs the servers."""
    with tempfile.TemporaryDirectory(prefix="headgate-", dir=scratch_parent()) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Guarded]:
    authority = Authority(folder)
    with EtcdCluster.started(certificates=authority.cluster()) as cluster:
        cluster.enable_auth({"agent": "secret"}, prefix=PREFIX)
        yield Guarded(cluster, authority, folder, authority.issue("ours"))


async def listing(store: EtcdStore) -> None:
    await store.list(["a"])


async def commit(store: EtcdStore) -> None:
    await store.commit([], [Put("a", b"1")])


async def watch(store: EtcdStore) -> None:
    async with aclosing(store.watch(["a", "b"], after_revision=1)) as changes:
        await anext(changes)


Question = Callable[[EtcdStore], Awaitable[None]]
EACH = pytest.mark.parametrize("question", [listing, commit, watch], ids=lambda q: q.__name__)


async def rejection(store: EtcdStore, question: Question) -> str:
    async with aclosing_store(store):
        with pytest.raises(StoreRejected) as told:
            await question(store)
        assert "secret" not in str(told.value)
        return str(told.value)


class aclosing_store:  # noqa: N801 -- as contextlib.aclosing, for what closes by close()
    def __init__(self, store: EtcdStore) -> None:
        self._store = store

    async def __aenter__(self) -> EtcdStore:
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()


async def test_with_everything_right_it_works(guarded: Guarded) -> None:
    async with aclosing_store(guarded.store()) as store:
        for question in (commit, listing, watch):
            await question(store)


@EACH
async def test_a_wrong_password_is_rejected_with_what_to_check(
    guarded: Guarded, question: Question
) -> None:
    store = guarded.store(password_file=guarded.password_file("wrong", "wrong"))
    told = await rejection(store, question)
    assert "'agent'" in told
    assert "password_file" in told


@EACH
async def test_nobody_unnamed_gets_in(guarded: Guarded, question: Question) -> None:
    told = await rejection(guarded.store(username=""), question)
    assert "username" in told


@EACH
async def test_another_prefix_is_not_ours(guarded: Guarded, question: Question) -> None:
    told = await rejection(guarded.store(prefix="/other/"), question)
    assert "grant" in told


@EACH
async def test_a_certificate_with_a_name_is_rejected_by_the_gateway(
    guarded: Guarded, question: Question
) -> None:
    named = guarded.authority.issue("named", common_name="agent")
    told = await rejection(guarded.store(cert=named), question)
    assert "common name" in told


@EACH
async def test_a_member_of_another_authority_is_not_believed(
    guarded: Guarded, question: Question
) -> None:
    other = Authority(guarded.folder, "other")
    told = await rejection(guarded.store(ca=other.path), question)
    assert "set ca of [fleet]" in told


@pytest.mark.parametrize("question", [listing, watch], ids=lambda q: q.__name__)
@pytest.mark.parametrize("why", ["none", "expired", "alien"])
async def test_a_client_certificate_that_it_does_not_take(
    guarded: Guarded, question: Question, why: str
) -> None:
    expired = guarded.authority.issue("expired", expired=True)
    alien = Authority(guarded.folder, "alien").issue("alien")
    shown = {"none": None, "expired": expired, "alien": alien}[why]
    store = guarded.store(cert=shown, shows_certificate=shown is not None)
    assert "cert and key of [fleet]" in await rejection(store, question)


async def test_a_change_under_an_expired_certificate_is_reported_with_the_remedy(
    guarded: Guarded,
) -> None:
    expired = guarded.authority.issue("expired", expired=True)
    async with aclosing_store(guarded.store(cert=expired)) as store:
        with pytest.raises((StoreRejected, OutcomeUnknown), match="cert and key of"):
            await commit(store)


async def test_a_member_with_an_expired_certificate_is_rejected(folder: Path) -> None:
    authority = Authority(folder, "late")
    certificates = authority.cluster(with_clients=False, expired=True)
    with EtcdCluster.started(certificates=certificates) as cluster:
        access = load_access(ca=authority.path)
        async with aclosing_store(
            EtcdStore(cluster.endpoints, access, PREFIX, timeout_s=DEADLINE_S, roll=lambda: 0.0)
        ) as store:
            for question in (listing, commit, watch):
                with pytest.raises(StoreRejected, match="certificate has expired"):
                    await question(store)


@pytest.mark.parametrize("question", [listing, watch], ids=lambda q: q.__name__)
async def test_plain_http_to_a_member_with_tls_says_so(
    guarded: Guarded, question: Question
) -> None:
    plain = [endpoint.replace("https", "http") for endpoint in guarded.cluster.endpoints]
    async with aclosing_store(guarded.store(endpoints=plain)) as store:
        with pytest.raises(StoreUnavailable, match="https://"):
            await question(store)


# --- while it runs -------------------------------------------------------------------------


async def test_a_token_that_a_member_has_forgotten_is_had_again(guarded: Guarded) -> None:
    async with aclosing_store(guarded.store()) as store:
        await commit(store)
        member = guarded.cluster.members[0]
        member.kill()
        member.start()
        await commit(store)
        await watch(store)


async def test_a_password_and_a_certificate_that_were_renewed_are_used(guarded: Guarded) -> None:
    """Both are files, and others renew them while the agent runs."""
    password = guarded.password_file("stale", "renewed")
    pair = guarded.authority.issue("renewed", expired=True)
    async with aclosing_store(guarded.store(password_file=password, cert=pair)) as store:
        with pytest.raises(StoreRejected, match="certificate"):
            await listing(store)
        guarded.authority.issue("renewed")
        with pytest.raises(StoreRejected):
            await listing(store)
        guarded.password_file("secret", "renewed")
        await listing(store)


# --- settings ------------------------------------------------------------------------------


def test_a_password_without_a_user_is_half_of_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"fleet\.username"):
        load_access(password_file=tmp_path / "password")
    with pytest.raises(InvalidSettings, match=r"fleet\.password_file"):
        load_access(username="agent")


@pytest.mark.parametrize("setting", ["password_file", "ca", "cert"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, setting: str) -> None:
    bad = tmp_path / "bad"
    bad.write_text("")
    user = "agent" if setting == "password_file" else ""
    with pytest.raises(InvalidSettings, match=rf"fleet\.{setting}: .*{bad}"):
        load_access(username=user, **{setting: bad})


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    assert "secret" not in repr(load_access(username="agent", password_file=path))
