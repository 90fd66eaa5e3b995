"""Why a member closed the connection before it answered.

With TLS 1.3 a member rejects a client's certificate after we believe to be connected: the request
then breaks a pipe, and the reason is left unread. Without a request, we get to read it.
"""

from __future__ import annotations

import asyncio
import ssl

WITHIN_S = 0.3


async def why_hung_up(host: str, port: int, tls: ssl.SSLContext) -> ssl.SSLError | None:
    """None: it takes our certificate, or nobody is there to tell."""
    try:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                # A member that lets us in waits for a question, and so do we: to no avail.
                await reader.read(1)
            finally:
                writer.close()
    except ssl.SSLError as error:
        return error
    except (OSError, TimeoutError):
        return None
    return None
