"""COPY TO STDOUT by psycopg on an event loop: a client that waits on the socket itself.

    copy_out.py binary|python DSN ROUNDS SEED [LIBPQ]

The `python` implementation calls libpq through ctypes: the system's, or LIBPQ. Prints "done" once
every COPY has ended with the right bytes.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import random
import sys

implementation, dsn, rounds, seed, *libpq = sys.argv[1:]
os.environ["PSYCOPG_IMPL"] = implementation
if libpq:
    ctypes.util.find_library = lambda name: libpq[0]

import psycopg  # noqa: E402


async def main() -> None:
    dice = random.Random(int(seed))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as session:
        print(psycopg.pq.__impl__, psycopg.pq.version(), flush=True)
        for _ in range(int(rounds)):
            # Mostly short rows: a long one makes libpq's buffer larger than any record.
            longest = dice.choice((200, 1_000, 2_000, 4_000))
            lengths = [dice.randrange(1, longest) for _ in range(dice.randrange(1, 2_000))]
            text = "COPY (SELECT repeat('x', n) FROM unnest(%s::int[]) n) TO STDOUT"
            async with session.cursor() as cursor, cursor.copy(text, [lengths]) as out:
                got = b"".join([bytes(part) async for part in out])
            assert got == b"".join(b"x" * length + b"\n" for length in lengths), len(got)
        print("done", flush=True)


asyncio.run(main())
