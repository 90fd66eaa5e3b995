"""Signing in at the page, without a browser: who gets a session, and what a session is good for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headgate.http.auth import Credential
from headgate.page.rules_form import body_of, seal
from headgate.page.sessions import (
    LINK_S,
    MAX_FAILURES,
    MAX_LINKS,
    MAX_SESSIONS,
    MAX_SESSIONS_EACH,
    PageSessions,
)
from headgate.page.site import SigningPage
from tests.fixtures.fakes import HandClock
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, bearer, gatekeeper, serving
from tests.page.visiting import FORM, Visitor, signed_in, text_of

HOLD = {"kind": "hold", "target": "etl", "reason": "INC-1", "for": "1h", "end": "for"}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path_factory.mktemp("page")) as served:
        yield served


def rules(served: Served) -> list[str]:
    return [rule["id"] for rule in served.ask("GET", "/v1/rules").json["rules"]]


def link(served: Served, **headers: Any) -> str:
    reply = served.ask("POST", "/v1/page/links", body=b"", unix=not headers, **headers)
    assert reply.status == 201, reply.body
    return str(reply.json["path"]).partition("#")[2]


# --- getting in ---------------------------------------------------------------------------------


def test_a_token_opens_a_session_whose_cookie_no_script_and_no_other_site_gets(
    served: Served,
) -> None:
    reply = Visitor(served).post("/sign-in", {"token": OPERATOR, "to": "/rules"})
    assert (reply.status, reply.headers["location"]) == (303, "/rules")
    flags = {flag.strip().lower() for flag in reply.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/", "max-age=3600"} <= flags
    assert OPERATOR not in reply.headers["set-cookie"]
    assert "ops operator" in text_of(signed_in(served, OPERATOR).get("/rules"))


@pytest.mark.parametrize("secure", [True, False])
def test_with_tls_the_cookie_goes_nowhere_else(secure: bool) -> None:
    sessions, response = PageSessions(HandClock(), 60.0), Response()
    session = sessions.open("ann", may_change=True, credential=None)
    request = Request({"type": "http", "headers": [(b"host", b"db-1:8087")]})
    page = SigningPage(gatekeeper(Plan()), sessions, secure=secure)
    page._set_cookie(request, response, session)
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("headgate-8087=") and ("Secure" in cookie) is secure


@pytest.mark.parametrize("token", ["", "wrong", "x" * 100_0, OPERATOR.upper()])
def test_a_wrong_token_opens_nothing(served: Served, token: str) -> None:
    reply = Visitor(served).post("/sign-in", {"token": token})
    assert reply.status == 401 and "set-cookie" not in reply.headers
    assert "this agent does not know the token" in text_of(reply)


def test_guessing_is_slowed_down_and_locks_nobody_out(tmp_path: Path) -> None:
    """A right token and a right link always open the page, even while others guess."""
    with serving(LOOPS["asyncio"], tmp_path) as served:
        for _ in range(MAX_FAILURES):
            assert Visitor(served).post("/sign-in", {"token": "wrong"}).status == 401
        late = Visitor(served).post("/sign-in", {"token": "wrong"})
        assert late.status == 429 and "set-cookie" not in late.headers
        assert re.search(r"too many wrong tokens were tried; wait \d+ s", text_of(late))
        assert signed_in(served, OPERATOR).csrf
        link = served.ask("POST", "/v1/page/links", Authorization=bearer(OPERATOR)).json["path"]
        assert signed_in(served, link.partition("#")[2]).csrf


def test_a_signed_in_user_can_sign_in_as_another_user(served: Served) -> None:
    """A viewer who is told to; and the session of before ends."""
    vic = signed_in(served, VIEWER)
    reply = vic.post("/sign-in", {"token": OPERATOR, "csrf": "of another page"})
    assert reply.status == 303
    assert "Sign in" in text_of(vic.get("/rules")) and "Sign out" not in text_of(vic.get("/rules"))
    ann = Visitor(served, reply.headers["set-cookie"].partition(";")[0])
    assert "Sign out" in text_of(ann.get("/rules"))


def test_a_session_by_a_link_ends_with_the_token_that_requested_it() -> None:
    clock = HandClock()
    ann = Credential("ann", "operator", "x")
    sessions = PageSessions(clock, 3600.0)
    by_token = sessions.redeem(sessions.make_link("ann", ann))
    by_socket = sessions.redeem(sessions.make_link("uid:0", None))
    assert by_token is not None and by_token.credential == ann
    assert by_socket is not None and by_socket.credential is None
    assert sessions.redeem("made up") is None


def test_nobody_crowds_out_the_sessions_of_others() -> None:
    sessions = PageSessions(HandClock(), 3600.0)
    ann = sessions.open("ann", may_change=True, credential=None)
    viewers = [sessions.open("vic", may_change=False, credential=None) for _ in range(2000)]
    assert sessions.find(ann.key) == ann
    assert sum(sessions.find(one.key) is not None for one in viewers) == MAX_SESSIONS_EACH


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8087", "127.0.0.1.evil.example"])
def test_a_site_of_another_name_cannot_read_the_page(served: Served, host: str) -> None:
    """Whose name was made to mean this address, after it was loaded."""
    for path in ("/", "/rules", "/sign-in"):
        reply = served.ask("GET", path, Host=host)
        assert reply.status == 421 and "`hosts` of [agent]" in text_of(reply)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "localhost", "a.localhost:1", "AGENT"])
def test_by_its_address_and_its_own_names_it_is_read(served: Served, host: str) -> None:
    assert served.ask("GET", "/rules", Host=host).status == 200


@pytest.mark.parametrize("origin", ["http://[::1", "null", "https://evil.example"])
def test_an_origin_that_is_none_is_rejected_like_another_site(served: Served, origin: str) -> None:
    reply = signed_in(served, OPERATOR).post("/sign-out", Origin=origin)
    assert reply.status == 403 and "another site" in text_of(reply)


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/\nLocation: https://evil.example",
        "/rules\x00",
        "evil",
        "/" + "x" * 2000,
    ],
)
def test_a_link_leads_to_no_other_site(served: Served, to: str) -> None:
    reply = Visitor(served).post("/sign-in", {"token": OPERATOR, "to": to})
    assert (reply.status, reply.headers["location"]) == (303, "/")


def test_a_link_works_once_and_signs_in_the_user_who_requested_it(served: Served) -> None:
    code = link(served, Authorization=bearer(OPERATOR))
    assert Visitor(served).post("/sign-in", {"token": code}).status == 303
    assert Visitor(served).post("/sign-in", {"token": code}).status == 401
    visitor = signed_in(served, link(served))
    assert "uid:" in text_of(visitor.get("/rules"))
    assert visitor.post("/rules/preview", HOLD).status == 200


def test_who_may_not_change_gets_no_link(served: Served) -> None:
    asked: list[tuple[dict[str, Any], int]] = [
        ({"Authorization": bearer(VIEWER)}, 403),
        ({"X_Nobody": "1"}, 401),
    ]
    for headers, status in asked:
        reply = served.ask("POST", "/v1/page/links", body=b"", **headers)
        assert reply.status == status


async def test_a_link_and_a_session_end_in_time() -> None:
    clock = HandClock()
    sessions = PageSessions(clock, 60.0)
    code, session = (
        sessions.make_link("uid:0", None),
        sessions.open("a", may_change=True, credential=None),
    )
    await clock.advance(59.0)
    assert sessions.find(session.key) is session
    await clock.advance(2.0)
    assert sessions.find(session.key) is None
    await clock.advance(LINK_S)
    assert sessions.redeem(code) is None


def test_neither_sessions_nor_links_fill_the_memory() -> None:
    sessions = PageSessions(HandClock(), 60.0)
    names = [f"n{number}" for number in range(MAX_SESSIONS + 1)]
    opened = [sessions.open(name, may_change=True, credential=None) for name in names]
    links = [sessions.make_link("a", None) for _ in range(MAX_LINKS + 1)]
    assert sessions.find(opened[0].key) is None and sessions.find(opened[1].key) is not None
    assert sessions.redeem(links[0]) is None and sessions.redeem(links[1]) is not None


def test_a_session_is_never_shown_with_its_key() -> None:
    session = PageSessions(HandClock(), 60.0).open("ann", may_change=True, credential=None)
    assert session.key not in repr(session) and session.csrf not in repr(session)


# --- what a session is good for -----------------------------------------------------------------


def test_signing_out_ends_the_session_and_not_only_the_cookie(served: Served) -> None:
    visitor = signed_in(served, OPERATOR)
    assert visitor.post("/sign-out").status == 303
    assert "Sign in" in text_of(visitor.get("/rules"))
    assert visitor.post("/rules/preview", HOLD).status == 401


def test_a_viewer_changes_nothing_whatever_they_send(served: Served) -> None:
    visitor, before = signed_in(served, VIEWER), rules(served)
    body = {**HOLD, "seal": _seal()}
    for path in ("/rules/preview", "/rules"):
        reply = visitor.post(path, body)
        assert reply.status == 403 and "eve may look, not change" in text_of(reply)
    assert rules(served) == before


def test_nobody_who_is_not_signed_in_changes_anything(served: Served) -> None:
    before = rules(served)
    assert Visitor(served).post("/rules", {**HOLD, "seal": _seal()}).status == 401
    assert rules(served) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://agent:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_rejected(served: Served, headers: dict[str, Any]) -> None:
    visitor, before = signed_in(served, OPERATOR), rules(served)
    reply = visitor.post("/rules", {**HOLD, "seal": _seal()}, **headers)
    assert reply.status == 403 and "sent by another site; nothing was changed" in text_of(reply)
    assert rules(served) == before


def test_a_form_needs_the_token_of_its_own_session(served: Served) -> None:
    ann, other = signed_in(served, OPERATOR), signed_in(served, OPERATOR)
    before = rules(served)
    for told in ("", "wrong", other.csrf, "\u00e9"):
        ann_with = Visitor(served, ann.cookie, told)
        reply = ann_with.post("/rules", {**HOLD, "seal": _seal()})
        assert reply.status == 403 and "of an earlier sign-in; nothing was changed" in text_of(
            reply
        )
    assert rules(served) == before


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "multipart/form-data"])
def test_what_is_no_form_is_not_taken_for_one(served: Served, content_type: str) -> None:
    visitor, before = signed_in(served, OPERATOR), rules(served)
    reply = visitor.post("/rules", HOLD, Content_Type=content_type)
    assert reply.status == 415 and rules(served) == before


def test_a_form_of_too_many_fields_or_no_text_is_rejected(served: Served) -> None:
    visitor = signed_in(served, OPERATOR)
    assert visitor.post("/rules", {f"f{n}": "x" for n in range(300)}).status == 400
    headers: dict[str, Any] = {"Cookie": visitor.cookie, "Content_Type": FORM}
    assert served.ask("POST", "/rules", body=b"csrf=\xff\xfe\xff", **headers).status in (400, 403)


def test_the_api_takes_no_cookie(served: Served) -> None:
    """What another site could send along must not count there: it has no CSRF token."""
    visitor, before = signed_in(served, OPERATOR), rules(served)
    body = json.dumps({"target": "etl", "kind": "hold", "reason": "x"}).encode()
    headers: dict[str, Any] = {"Cookie": visitor.cookie, "Content_Type": "application/json"}
    assert served.ask("POST", "/v1/rules", body=body, **headers).status == 401
    assert rules(served) == before


@pytest.mark.parametrize("path", ["/", "/rules", "/sign-in", "/rules/new", "/rules/nosuch/lift"])
def test_every_page_says_what_a_browser_may_load(served: Served, path: str) -> None:
    headers = Visitor(served).get(path).headers
    assert headers["content-security-policy"] == CSP
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


def test_files_of_the_page_are_a_closed_list(served: Served) -> None:
    for name in (
        "../site.py",
        "..%2Fsite.py",
        "vendor/../../site.py",
        "%2e%2e/site.py",
        "nosuch.js",
    ):
        assert Visitor(served).get(f"/static/{name}").status == 404
    assert Visitor(served).get("/static/page.css").status == 200


def _seal() -> str:
    return seal(body_of(HOLD))
