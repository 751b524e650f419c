"""Who may ask: the guard before the application, which no request passes that a foreign page could have made.

A page of another site can let a browser send requests to this machine, and a name server can give this machine another
name (DNS rebinding). So the name that was asked, where the request comes from, and its kind are checked, and the answer
forbids what a page of ours does not need. Sources: W3C, Fetch Metadata Request Headers and Content Security Policy
Level 3; OWASP, Cross-Site Request Forgery Prevention Cheat Sheet.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from traincast.serve.failures import Problem
from traincast.shipped import SHIPPED

TAB = "x-traincast-tab"
"""Header with the random name of a page. No foreign page can send it: it is not a header that browsers send unasked."""
COOKIE = "traincast_token"
_STYLE = re.compile(r"text\(`(:where.*?)`\)")
"""A style in the text of Observable Plot, which it adds to a chart."""


def _styles() -> str:
    """Return the styles of Plot's charts of class ``plot`` as sources of a policy: their hashes."""
    texts = _STYLE.findall((SHIPPED / "serve/vendor/plot.umd.min.js").read_text(encoding="utf-8"))
    plain = (re.sub(r"\$\{\w+\}", "plot", each).replace("\\n", "\n") for each in texts)
    hashes = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode("ascii") for each in plain)
    return " ".join(f"'sha256-{each}'" for each in hashes)


POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_styles()}; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_SAME = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` of requests of our page, and of those that a person typed."""

Headers = Mapping[str, str]
Asgi = Any


class Guard:
    """An ASGI application that hands on to another one what may be asked."""

    def __init__(self, app: Asgi, hosts: Iterable[str], token: str | None = None, *, any_address: bool = False) -> None:
        """Take names that this server goes under; with `any_address` also every numeric one."""
        self._app = app
        self._hosts = {each.lower() for each in hosts}
        self._token = token
        self._any_address = any_address

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            # Lifespan goes on; there are no web sockets.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        why = self._wrong(scope, headers)
        if why is not None:
            await _refuse(send, *why)
        elif self._token is not None and not self._knows(headers):
            await self._enter(scope, send)
        else:
            await self._answered(scope, receive, send)

    async def _answered(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Hand on a request; where the server stops before all of it came, that is told in place of an answer."""
        answering = _Answering(send)
        try:
            await self._app(scope, receive, answering)
        except asyncio.CancelledError:
            if answering.begun:
                raise
            await _refuse(send, 503, "the server was stopped; start it again with: traincast serve")

    def _wrong(self, scope: Mapping[str, Any], headers: Headers) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal; None of a request that may be asked."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return 421, "this server does not go under that name; open the address that it printed"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "the request comes from another site; open the page of this server"
        if headers.get("sec-fetch-site", "none") not in _SAME and not _is_visit(scope, headers):
            return 403, "the request comes from another site; open the page of this server"
        if scope["method"] not in ("GET", "HEAD", "POST", "DELETE"):
            return 405, "the method is none of this server's; use GET, POST or DELETE"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json" and (kind, TAB in headers) != _FILES:
            return 415, f"a request brings JSON (Content-Type: application/json), or files with a header {TAB}"
        return None

    def _is_ours(self, host: str) -> bool:
        """Say whether a ``Host`` is a name of this server."""
        if host.lower() in self._hosts:
            return True
        name = urlsplit(f"//{host}").hostname if self._any_address else None
        try:
            return name is not None and ipaddress.ip_address(name) is not None
        except ValueError:
            return False

    def _knows(self, headers: Headers) -> bool:
        """Say whether a request has the token."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(given.strip())
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and self._is_token(morsel.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())

    async def _enter(self, scope: Mapping[str, Any], send: Any) -> None:  # noqa: ANN401
        """Let in who brings the token in the address, which is then taken out of it."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] != "/" or not self._is_token(given):
            await _refuse(send, 401, "this server needs its token; open the address that it printed")
            return
        cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        await _answer(send, 303, b"", {"location": "/", "set-cookie": cookie})


_FILES = ("multipart/form-data", True)


def _is_visit(scope: Mapping[str, Any], headers: Headers) -> bool:
    """Say whether somebody follows a link to the page, which a link that is shared is."""
    return scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"


class _Answering:
    """Sends an answer with what every answer says, and knows whether it has begun."""

    def __init__(self, send: Any) -> None:  # noqa: ANN401
        self._send = send
        self.begun = False

    async def __call__(self, message: Any) -> None:  # noqa: ANN401
        if message["type"] == "http.response.start":
            self.begun = True
            known = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in known]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)


async def _refuse(send: Any, status: int, message: str) -> None:  # noqa: ANN401
    body = msgspec.json.encode({"error": Problem.simple("refused", message)})
    await _answer(send, status, body, {"content-type": "application/json"})


async def _answer(send: Any, status: int, body: bytes, headers: Headers) -> None:  # noqa: ANN401
    listed = [(name.encode(), text.encode()) for name, text in {**HEADERS, **headers}.items()]
    listed.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
