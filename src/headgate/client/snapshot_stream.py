"""A stream of events, read as it comes.   bytes ──► StreamReader ──► (kind, data)

No sockets here: a driver feeds it, over TLS or not, as it feeds any other exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from headgate.client.http1 import BadResponse, ResponseReader, _chunk_size, _Head

EVENT_STREAM = "text/event-stream"
TakeEvent = Callable[[str, str], None]


class EventReader:
    """Server-Sent Events, as much of them as our agent sends: a kind and one line of data."""

    def __init__(self, take: TakeEvent, max_event_bytes: int) -> None:
        self._take = take
        self._most = max_event_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data
        while (end := self._buffer.find(b"\n\n", searched)) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            searched = 0
            self._tell(block)
        if len(self._buffer) > self._most:
            raise BadResponse(f"an event of more than {self._most} bytes")

    def _tell(self, block: bytes) -> None:
        fields: dict[str, str] = {}
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            raise BadResponse("an event that is not UTF-8") from None
        for line in lines:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        if "data" in fields:
            self._take(fields.get("event", "message"), fields["data"])


class StreamReader(ResponseReader):
    """A response whose body is handed on piece by piece, where it is a stream of events."""

    def __init__(self, take: TakeEvent, max_event_bytes: int) -> None:
        super().__init__()
        self._events = EventReader(take, max_event_bytes)
        self._max_chunk_bytes = max_event_bytes + 1024

    def _body(self, head: _Head) -> Generator[None, None, tuple[bytes, bool]]:
        kind = head.headers.get("content-type", "").partition(";")[0].strip()
        if head.status != 200 or kind != EVENT_STREAM:
            return (yield from super()._body(head))
        coding = head.headers.get("transfer-encoding", "").lower()
        yield from self._pieces() if coding == "chunked" else self._as_it_comes()
        return b"", False

    def _pieces(self) -> Generator[None, None, None]:
        while size := _chunk_size((yield from self._until(b"\r\n"))):
            if size > self._max_chunk_bytes:
                raise BadResponse(f"a piece of {size} bytes, at most {self._max_chunk_bytes}")
            piece = yield from self._take(size + 2)
            if not piece.endswith(b"\r\n"):
                raise BadResponse("a piece of the stream is not as long as it says")
            self._events.feed(piece[:-2])

    def _as_it_comes(self) -> Generator[None, None, None]:
        while True:
            piece = bytes(self._buffer)
            self._buffer.clear()
            self._events.feed(piece)
            if self._ended:
                return
            yield
