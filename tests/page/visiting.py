"""Someone at the page without a browser: their cookie, the form token, what they are shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

from tests.http.serving import Served
from tests.http.talk import Reply

_CSRF = re.compile(r'name="csrf" value="([^"]+)"')
_TAG = re.compile(r"<[^>]*>")
FORM = "application/x-www-form-urlencoded"


@dataclass
class Visitor:
    served: Served
    cookie: str = ""
    csrf: str = ""

    def get(self, path: str, *, script: bool = False, **query: Any) -> Reply:
        asked = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        return self.served.ask("GET", asked, **self._headers(script))

    def post(
        self, path: str, fields: dict[str, str] | None = None, *, script: bool = False, **more: Any
    ) -> Reply:
        """`more`: headers, such as Origin."""
        body = urlencode({"csrf": self.csrf, **(fields or {})}).encode()
        headers = {**self._headers(script), "Content_Type": FORM, **more}
        return self.served.ask("POST", path, body=body, **headers)

    def _headers(self, script: bool) -> dict[str, Any]:
        headers: dict[str, Any] = {"Cookie": self.cookie} if self.cookie else {}
        return {**headers, "HX_Request": "true"} if script else headers


def signed_in(served: Served, token: str) -> Visitor:
    reply = Visitor(served).post("/sign-in", {"token": token})
    assert reply.status == 303, text_of(reply)
    visitor = Visitor(served, reply.headers["set-cookie"].partition(";")[0])
    found = _CSRF.search(visitor.get("/").body.decode())
    assert found is not None
    visitor.csrf = unescape(found[1])
    return visitor


def text_of(reply: Reply) -> str:
    """What a person reads of it."""
    return " ".join(unescape(_TAG.sub(" ", reply.body.decode())).split())


def field_of(reply: Reply, name: str) -> str:
    """The value of a form's field."""
    found = re.search(rf'name="{re.escape(name)}"[^>]*? value="([^"]*)"', reply.body.decode())
    assert found is not None, f"no field {name}"
    return unescape(found[1])
