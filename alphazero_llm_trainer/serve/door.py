"""The door: who may ask, from which pages, and how large a body may be."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .failures import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN = "/health"  # asked by machines that hold no key


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host of a `Host` header, without its port; "" where there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class Door:
    """ASGI middleware: host, origin, key and size are checked before a request is read.

    Args:
        app: what is behind the door.
        keys: any one of them opens; none: open to whoever can reach the address.
        loopback: the server listens on this machine alone, so a request for another host comes from a web page that
            made its name point here (DNS rebinding).
        most: bytes of a body.
    """

    def __init__(self, app: Any, keys: Sequence[str], loopback: bool, most: int) -> None:
        self.app, self.loopback, self.most = app, loopback, most
        self.keys = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self.check(scope["path"], headers)
        except ApiError as error:
            await error.response(scope, receive, send)
            return
        read = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            self.fits(read)
            return message

        await self.app(scope, limited, send)

    def check(self, path: str, headers: dict[str, str]) -> None:
        """Raise ApiError for a request that may not pass."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self.loopback and not is_loopback(host_of(host)):
            raise ApiError("this server answers requests to its own address alone", 421, code="wrong_host")
        if origin is not None and origin.partition("://")[2].lower() != host:
            raise ApiError("requests from other web pages are refused", 403, code="wrong_origin")
        if self.keys and path != OPEN and not self.opens(headers.get("authorization", "")):
            missing = "the API key is missing or wrong: send `Authorization: Bearer KEY`"
            asked = {"WWW-Authenticate": 'Basic realm="alphazero-llm-trainer"'}  # browsers ask for a password then
            raise ApiError(missing, 401, code="invalid_api_key", headers=asked)
        length = headers.get("content-length", "0")
        self.fits(int(length) if length.isdigit() else 0)

    def opens(self, authorization: str) -> bool:
        """Whether a header holds one of the keys, as a token or as a password. The time it takes says nothing about them."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:
                return False
        digest = hashlib.sha256(given.strip().encode()).digest()
        return any([hmac.compare_digest(digest, key) for key in self.keys])

    def fits(self, length: int) -> None:
        """Raise ApiError for a body of more bytes than are read."""
        if length > self.most:
            raise ApiError(f"the body is larger than {self.most} bytes: send less", 413, code="request_too_large")
