"""The door: who may ask, from which pages, and how much at once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from .failures import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = {"/health"}  # asked by machines that hold no key


def is_page(path: str) -> bool:
    """Whether a browser reads it, which asks its user for a password."""
    return path == "/" or path.startswith("/traces/")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: host, origin, key and size are checked before a request is read.

    Args:
        app: what is behind the door.
        refuse: answers a request with an ApiError.
        keys: any one of them opens; none: open to whoever can reach the address.
        loopback: the server listens on this machine alone, so a request for another host comes from a web page that
            made its name point here (DNS rebinding).
        most: bytes of a body.
        closed: why nobody may pass at all, or None.
    """

    def __init__(
        self,
        app: App,
        refuse: Callable[[ApiError], Any],
        keys: Sequence[str],
        loopback: bool,
        most: int,
        closed: Callable[[], ApiError | None] = lambda: None,
    ) -> None:
        self.app, self.refuse, self.loopback, self.most, self.closed = app, refuse, loopback, most, closed
        self.keys = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self.check(scope["path"], headers)
        except ApiError as error:
            await self.refuse(error)(scope, receive, send)
            return
        read = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:
                raise self.too_large()
            return message

        scope.setdefault("state", {})["client"] = self.client_of(scope, headers)
        await self.app(scope, limited, send)

    def check(self, path: str, headers: dict[str, str]) -> None:
        """Raise ApiError for a request that may not pass."""
        closed = self.closed()
        if closed is not None:
            raise closed
        host = headers.get("host", "").lower()
        if self.loopback and not is_loopback(
            host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        ):
            raise ApiError("this server answers requests to its own address alone", 421, code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host:
            raise ApiError("requests from other web pages are refused", 403, code="wrong_origin")
        if self.keys and path not in OPEN and not self.opens(path, headers.get("authorization", "")):
            basic = {"WWW-Authenticate": 'Basic realm="alphazero-llm-trainer"'} if is_page(path) else {}
            raise ApiError(
                "the API key is missing or wrong: send `Authorization: Bearer KEY`",
                401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer", **basic},
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.most:
            raise self.too_large()

    def opens(self, path: str, authorization: str) -> bool:
        """Whether a header holds one of the keys. The time it takes says nothing about them."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic" and is_page(path):
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        digest = hashlib.sha256(given.strip().encode()).digest()
        return any([hmac.compare_digest(digest, key) for key in self.keys])

    def client_of(self, scope: Scope, headers: dict[str, str]) -> str:
        """Who asks, as far as fairness goes: an address and its key, however the header spells that.

        Without keys, whatever stands in a key's place tells the programs of this machine apart. From another one it
        would let a client be as many as it likes.
        """
        address = (scope.get("client") or ("",))[0]
        if not self.keys and not self.loopback:
            return address
        given = headers.get("authorization", "").partition(" ")[2].strip()
        return f"{address} {hashlib.sha256(given.encode()).hexdigest()[:16]}"

    def too_large(self) -> ApiError:
        return ApiError(f"the body is larger than {self.most} bytes: send less", 413, code="request_too_large")
