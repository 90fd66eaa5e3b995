"""`headgate doctor`: everything that an agent needs from its surroundings, tried once.

    settings file ──► databases, rights, clocks, metrics ──► port, state, certificate ──► peers
                                                                            └──► one Diagnosis each

Nothing is changed; a metric is read as the agent reads it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headgate.base.assemble import peer_access
from headgate.base.clock import SystemClock
from headgate.check.reasons import quantity
from headgate.commands import discover_database, validated
from headgate.errors import HeadgateError, InvalidSettings, PeerFailed, ProbeFailed
from headgate.settings.agent import Settings, advice_on
from headgate.settings.sections import AgentSettings, DatabaseSettings
from headgate.settings.starter import Diagnosis, Discovery
from headgate.shard.peers import PeerAccess, open_link
from headgate.version import VERSION

CLOCK_S = 0.1
"""Hosts that are kept by NTP differ by less."""
PEER_S = 5.0
LITTLE_BYTES, NO_BYTES = 1 << 30, 16 << 20
SOON_S = 14 * 86_400.0


class _Answering(msgspec.Struct):
    """Of GET /v1/status, what is looked at here."""

    agent: str
    version: str


def examine(settings_path: Path) -> list[Diagnosis]:
    try:
        settings = validated(settings_path)
    except InvalidSettings as error:
        return [Diagnosis("fault", str(settings_path), str(fault)) for fault in error.faults]
    return asyncio.run(_examine(settings, settings_path))


async def _examine(settings: Settings, path: Path) -> list[Diagnosis]:
    advice = [*settings.advice, *advice_on(settings)]
    found = [Diagnosis("advice", str(path), f"{one.place}: {one.message}") for one in advice]
    found = found or [Diagnosis("ok", str(path), "no faults, no advice")]
    for database in settings.databases.values():
        found += [finding async for finding in _database(database)]
    found += [finding async for finding in _listening(settings)]
    found += _state(settings.agent)
    found += _certificate(settings.agent)
    found += [finding async for finding in _peers(settings)]
    return found


# --- databases -----------------------------------------------------------------------------------


async def _database(database: DatabaseSettings) -> AsyncIterator[Diagnosis]:
    try:
        seen, clock_ahead_s = await discover_database(database)
    except ProbeFailed as failure:
        yield Diagnosis("fault", database.name, f"cannot be reached: {failure.detail}")
        return
    yield Diagnosis("ok", database.name, f"{seen.server} at {seen.where}: {seen.role}")
    grants = seen.missing_grants()
    if grants:
        says = f"its role lacks rights; as an administrator: {' '.join(grants)}"
        yield Diagnosis("fault", database.name, says)
    if clock_ahead_s is not None:
        yield _clock(database.name, clock_ahead_s)
    for finding in _metrics(database, seen):
        yield finding
    for finding in _extension(database, seen):
        yield finding


def _clock(name: str, ahead_s: float) -> Diagnosis:
    if abs(ahead_s) <= CLOCK_S:
        return Diagnosis(
            "ok", name, f"its clock agrees with this host's ({ahead_s * 1000:+.0f} ms)"
        )
    side = "ahead of" if ahead_s > 0 else "behind"
    says = f"its clock is {abs(ahead_s):.2f} s {side} this host's: keep both by NTP"
    return Diagnosis("advice", name, says)


def _metrics(database: DatabaseSettings, seen: Discovery) -> Iterator[Diagnosis]:
    for look in seen.looks:
        subject, spec = f"{database.name}/{look.metric}", database.metrics[look.metric]
        if look.value is None:
            says = f"has no value, so it rejects checks: {look.detail}"
            yield Diagnosis("fault", subject, says)
            continue
        limit = f"{spec.comparison.value} {quantity(spec.threshold, spec.unit)}"
        value = f"{quantity(look.value, spec.unit)} (rejects {limit})"
        if spec.breaches(look.value):
            yield Diagnosis(
                "advice", subject, f"{value}: rejects checks now. {look.detail}".rstrip()
            )
        else:
            yield Diagnosis("ok", subject, value)


def _extension(database: DatabaseSettings, seen: Discovery) -> Iterator[Diagnosis]:
    """A policy directory of a Postgres server is for the extension, unless a proxy has it."""
    traffic = database.traffic
    if traffic is None or not traffic.enabled or traffic.directory is None or not seen.is_postgres:
        return
    preloaded = "pg_headgate" in seen.facts.get("shared_preload_libraries", "")
    created = seen.facts.get("extension", "")
    if not preloaded:
        says = (
            "the server does not load pg_headgate, so only a proxy can enforce its budgets: "
            "headgate pg install, or see `headgate proxy status`"
        )
        yield Diagnosis("advice", database.name, says)
    elif created[:1].isdecimal() and not VERSION.startswith(created):
        says = f"has extension {created}, and this is headgate {VERSION}: headgate pg install"
        yield Diagnosis("advice", database.name, says)
    else:
        yield Diagnosis("ok", database.name, f"the server loads pg_headgate ({created})")


# --- this host -----------------------------------------------------------------------------------


async def _listening(settings: Settings) -> AsyncIterator[Diagnosis]:
    """An agent that runs already is asked for its version; else the port must be free."""
    agent = settings.agent
    if agent.listen is None:
        return
    host, port = agent.listen
    shown, near = f"{host}:{port}", "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104
    if not _is_taken(host, port):
        yield Diagnosis("ok", shown, "is free: no agent runs here")
        return
    url = f"{'https' if agent.tls_cert else 'http'}://{f'[{near}]' if ':' in near else near}:{port}"
    try:
        status, body = await _ask(url, peer_access(settings))
    except (PeerFailed, HeadgateError) as error:
        says = f"is taken by a program that is no agent, or one with another certificate: {error}"
        yield Diagnosis("fault", shown, says)
        return
    yield _answered(shown, status, body)


def _is_taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError:
            return True
    return False


def _answered(subject: str, status: int, body: bytes) -> Diagnosis:
    if status in (401, 403):
        says = "rejects our token: token_file of [peers] must hold the same one everywhere"
        return Diagnosis("fault", subject, says)
    try:
        one = msgspec.json.decode(body, type=_Answering)
    except msgspec.DecodeError:
        return Diagnosis("fault", subject, f"answers HTTP {status}, and is no agent of headgate")
    if one.version != VERSION:
        says = f"agent {one.agent} is version {one.version}, and this is {VERSION}: upgrade one"
        return Diagnosis("advice", subject, says)
    return Diagnosis("ok", subject, f"agent {one.agent} {one.version} answers")


async def _ask(url: str, access: PeerAccess) -> tuple[int, bytes]:
    link = open_link(url, access, sender="doctor", now=SystemClock().now)
    try:
        status, body, _ = await link.ask("GET", "/v1/status", timeout_s=PEER_S)
    finally:
        await link.close()
    return status, body


def _state(agent: AgentSettings) -> Iterator[Diagnosis]:
    if agent.state is None:
        says = "no state file: changes, audit and history end with the agent. Set state of [agent]"
        yield Diagnosis("advice", "state", says)
        return
    folder, subject = agent.state.parent, str(agent.state)
    if not folder.is_dir():
        yield Diagnosis("fault", subject, f"its folder does not exist: mkdir -p {folder}")
        return
    if not os.access(folder, os.W_OK) or (
        agent.state.exists() and not os.access(agent.state, os.W_OK)
    ):
        says = f"this user may not write it: run doctor as the agent's user, or chown {folder}"
        yield Diagnosis("fault", subject, says)
        return
    free = shutil.disk_usage(folder).free
    says = f"{free / 2**30:,.0f} GiB free" if free >= LITTLE_BYTES else f"{free >> 20} MiB free"
    if free < LITTLE_BYTES:
        yield Diagnosis(
            "fault" if free < NO_BYTES else "advice",
            subject,
            f"only {says} on its file system: make room",
        )
    else:
        yield Diagnosis("ok", subject, f"can be written, {says}")


def _certificate(agent: AgentSettings) -> Iterator[Diagnosis]:
    if agent.tls_cert is None:
        return
    subject = str(agent.tls_cert)
    try:
        ends_s = expires_at(agent.tls_cert, agent.tls_key)
    except ssl.SSLError as error:
        yield Diagnosis("fault", subject, f"cannot be used: {error}")
        return
    left_s = ends_s - SystemClock().now().wall_s
    days = int(left_s // 86_400)
    if left_s < SOON_S:
        yield Diagnosis("advice", subject, f"ends in {days} days: renew it, then headgate reload")
    else:
        yield Diagnosis("ok", subject, f"good for {days} days")


def expires_at(cert: Path, key: Path | None) -> float:
    """Wall seconds at which a certificate ends: shown to ourselves, over no network. SSLError for
    one that has ended, or does not fit its key."""
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    server.load_cert_chain(cert, key)
    client.check_hostname = False
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # It is trusted as it is.
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(8):  # More than the messages of any handshake.
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = sides[0].getpeercert() or {}
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


# --- other agents --------------------------------------------------------------------------------


async def _peers(settings: Settings) -> AsyncIterator[Diagnosis]:
    access = peer_access(settings)
    urls = {peer.url: peer.name for one in settings.databases.values() for peer in one.peers}
    for url, name in urls.items():
        subject = f"peer {name} ({urlsplit(url).netloc})"
        try:
            status, body = await _ask(url, access)
        except PeerFailed as error:
            yield Diagnosis("fault", subject, f"does not answer: {error.detail}")
        else:
            yield _answered(subject, status, body)
