"""Keep the agent's policy in force here, where no agent writes into our directory; or a file's.

    agent's API ──GET /v1/policies/D, If-None-Match──► PolicyLink ──► PolicyTaker (the region)
                                                          └──► kept.json, for a start without agent

One request every second or two; an unchanged policy is a 304 of a few bytes. The last policy is
kept on disk: after a restart while every agent is away, it is in force before the first statement.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog

from headgate.base.ports import Clock
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from headgate.check.reasons import duration
from headgate.errors import InvalidSettings, PeerFailed, PolicyRejected
from headgate.proxy.agents import Agents, Reply
from headgate.proxy.ports import PartState, PolicyTaker

log = structlog.get_logger()

KEPT_FILE = "policy-kept.json"
POLL_S = 1.0
TIMEOUT_S = 5.0
MAX_BACKOFF_S = 15.0
MAX_POLICY_BYTES = 32 * 1024 * 1024
FORMAT = 1


class PolicyLink:
    name = "policy"

    def __init__(self, agents: Agents, taker: PolicyTaker, clock: Clock, directory: Path) -> None:
        self._agents = agents
        self._taker = taker
        self._clock = clock
        self._kept = directory / KEPT_FILE
        self._etag = ""
        """Of what is in force; empty: nothing, or nobody knows where it came from."""
        self._asked_of = ""
        self._fault = ""
        self._fault_since: float | None = None
        self._failures = 0
        self._source = ""
        self.revision: int | None = None
        self.taken_total = 0

    async def run(self) -> None:
        await self.recall()
        while True:
            await self.poll()
            await self._clock.sleep(self._pause_s)

    @property
    def _pause_s(self) -> float:
        return min(MAX_BACKOFF_S, POLL_S * 2.0 ** min(self._failures, 6))

    # --- from disk -------------------------------------------------------------------------

    async def recall(self) -> None:
        """What was in force before, until an agent says something newer."""
        try:
            document, policy = await asyncio.to_thread(self._recalled)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("policy.kept_unreadable", file=str(self._kept), detail=str(error))
            return
        if await self._put_in_force(policy, document["revision"], f"kept in {self._kept}"):
            log.info("policy.recalled", revision=self.revision, file=str(self._kept))

    def _recalled(self) -> tuple[dict[str, Any], Policy]:
        document = json.loads(self._kept.read_bytes())
        if document["format"] != FORMAT or not isinstance(document["revision"], int):
            raise ValueError(f"it is not of format {FORMAT}")
        return document, parse_policy(document["document"])

    def _keep(self, document: dict[str, Any]) -> None:
        """Whole or not at all: a new file, renamed into place."""
        new = self._kept.with_suffix(".new")
        kept = {"format": FORMAT, **{key: document[key] for key in ("revision", "document")}}
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(json.dumps(kept).encode())
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._kept)

    # --- from an agent ---------------------------------------------------------------------

    async def poll(self) -> None:
        path = f"/v1/policies/{quote(self._agents.database, safe='')}"
        headers = {"If-None-Match": self._etag} if self._etag else {}
        try:
            line, reply = await self._agents.ask(
                "GET", path, headers=headers, timeout_s=TIMEOUT_S, max_bytes=MAX_POLICY_BYTES
            )
        except PeerFailed as fault:
            self._failed(str(fault))
            return
        if reply.status == 304:
            self._worked(line.url)
        elif reply.status == 200:
            await self._take(reply, line.url)
        else:
            detail = _detail(reply.body)
            self._failed(f"{line.url} has no policy for it: status {reply.status}: {detail}")

    async def _take(self, reply: Reply, url: str) -> None:
        try:
            document, policy = await asyncio.to_thread(_read, reply.body)
        except (ValueError, KeyError, TypeError) as error:
            # InvalidSettings is a ValueError: of another version, it may say what we do not know.
            self._failed(f"the policy of {url} cannot be read, and the last one stays: {error}")
            return
        if not await self._put_in_force(policy, document["revision"], url):
            return
        self._etag = reply.headers.get("etag", "")
        self._worked(url)
        self.taken_total += 1
        try:
            await asyncio.to_thread(self._keep, document)
        except OSError as error:
            self._failed(f"it is in force, but {self._kept} cannot be written: {error.strerror}")

    async def _put_in_force(self, policy: Policy, revision: int, source: str) -> bool:
        try:
            await self._taker.take(policy, revision, source)
        except (PolicyRejected, InvalidSettings) as error:
            self._failed(f"the policy of {source} is invalid, and the last one stays: {error}")
            return False
        self.revision, self._source = revision, source
        return True

    def _worked(self, url: str) -> None:
        if self._fault:
            log.info("policy.followed_again", agent=url, revision=self.revision)
        self._fault, self._fault_since, self._failures, self._asked_of = "", None, 0, url

    def _failed(self, detail: str) -> None:
        if detail != self._fault:
            log.warning("policy.not_followed", detail=detail, revision=self.revision)
        if self._fault_since is None:
            self._fault_since = self._clock.now().mono_s
        self._fault = detail
        self._failures += 1

    def state(self) -> PartState:
        figures: dict[str, float | int | str | None] = {
            "revision": self.revision,
            "source": self._source or None,
            "policies_taken_total": self.taken_total,
        }
        stands = f"revision {self.revision} is in force" if self.revision is not None else "none"
        if self._fault:
            assert self._fault_since is not None
            since_s = self._clock.now().mono_s - self._fault_since
            summary = f"{stands}; not followed for {duration(since_s)}: {self._fault}"
            return PartState(self.name, False, summary, since_s, figures)
        summary = f"{stands}, from {self._asked_of}" if self._asked_of else stands
        return PartState(self.name, self.revision is not None, summary, figures=figures)

    async def close(self) -> None:
        return None


def _read(body: bytes) -> tuple[dict[str, Any], Policy]:
    document = json.loads(body)
    if not isinstance(document, dict) or not isinstance(document["revision"], int):
        raise ValueError("it is no policy with a revision")
    return document, parse_policy(document["document"])


def _detail(body: bytes) -> str:
    try:
        found = json.loads(body).get("detail", "")
    except (ValueError, AttributeError):
        found = ""
    return str(found) or "no reason given"


# --- policy from a file --------------------------------------------------------------------------

# Budgets from a file, followed as it changes.   policy.toml ──► PolicyFile ──► PolicyTaker

LOOK_S = 1.0


class PolicyFile:
    name = "policy"

    def __init__(
        self, path: Path, load: Callable[[Path], Policy], taker: PolicyTaker, clock: Clock
    ) -> None:
        """`load`: InvalidSettings with every fault of the file."""
        self._path = path
        self._load = load
        self._taker = taker
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self.fault = ""
        self.taken = 0

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self, *, again: bool = False) -> None:
        """`again`: also a file that has been seen (a reload)."""
        stamp = await asyncio.to_thread(_stamp, self._path)
        if stamp == self._seen and not again:
            return
        self._seen = stamp
        try:
            policy = await asyncio.to_thread(self._load, self._path)
            published = await self._taker.take(policy, 0, str(self._path))
        except (InvalidSettings, PolicyRejected) as error:
            self._failed(str(error))
            return
        self.fault = ""
        self.taken += 1
        log.info("policy.file_taken", file=str(self._path), version=published.version)

    def _failed(self, detail: str) -> None:
        self.fault = detail
        log.error("policy.file_rejected", detail=detail, stays="the last good one")

    def state(self) -> PartState:
        told = f"{self.fault}; the last good one stays" if self.fault else f"file {self._path}"
        return PartState(self.name, not self.fault, told, figures={"taken": self.taken})

    async def close(self) -> None:
        return None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 -- followed: it may be a link, as Kubernetes has them
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
