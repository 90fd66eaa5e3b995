"""Agents of replicas, many in one process: real listeners that answer pulls, and nothing else.

.venv/bin/python -m bench.members NAME:PORT[,NAME:PORT…]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from headgate.base.clock import SystemClock
from headgate.http.auth import Peer
from headgate.http.documents import reply
from headgate.http.listener import Handlers, Limits, Listener, Request
from headgate.metrics.samples import Sample
from headgate.shard.model import Pull
from headgate.shard.peers_api import decode_pull, encode_report
from headgate.shard.topology import MemberReport, Role, RoleSeen

METRICS = ("lag", "threads_running", "loadavg", "pool_usage", "lock_waits")


class StandIn:
    def __init__(self, name: str) -> None:
        self._name = name
        self._now = SystemClock().now

    async def serve(
        self, request: Request, peer: Peer, send: Callable[[bytes], Awaitable[None]]
    ) -> bool:
        received = self._now()
        pull = decode_pull(request.body, received=received)
        await asyncio.sleep(pull.wait_s)
        report = self._report(pull)
        await send(reply(200, encode_report(report, received=received, now=self._now())))
        return True

    def _report(self, pull: Pull) -> MemberReport:
        """A replica of whoever asks."""
        now, primary = self._now().mono_s, pull.role
        cluster, term = (primary.cluster, primary.term) if primary else ("", None)
        role = RoleSeen(Role.REPLICA, now, cluster, term, clock_ahead_s=0.0)
        readings = {metric: Sample(0.1, now) for metric in METRICS}
        return MemberReport(self._name, now, role, readings=readings)


async def main() -> None:
    loop = asyncio.get_running_loop()
    limits = Limits(64, 65536, request_timeout_s=10.0, idle_timeout_s=75.0)
    for entry in sys.argv[1].split(","):
        name, _, port = entry.partition(":")
        listener = Listener(Handlers(lambda request: None, StandIn(name).serve), limits)
        listener.add(await loop.create_server(listener, "127.0.0.1", int(port)))
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
