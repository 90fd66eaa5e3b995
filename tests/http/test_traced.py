"""Requests of a trace, where nothing is traced here: answered as any, and not remembered."""

from __future__ import annotations

from tests.http.serving import Served
from tests.http.talk import get
from tests.http.test_checks import CHECK

PARENT = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"


def test_what_never_comes_again_does_not_drive_out_the_pollers(served: Served) -> None:
    polled = get(CHECK)
    with served.talk() as talk:
        assert talk.send(polled).reply().status == 200
        traced = polled[:-2] + PARENT
        assert talk.send(traced).reply().status == 200
        assert talk.send(traced).reply().status == 200
    assert list(served.listener.repeats.memo) == [polled]
