"""Signed requests of a device to its gateway, over one connection that is kept."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 60.0  # seconds for an answer; a check-in may wait for 25
LARGEST_ANSWER = 2**20  # bytes of one that says something
LARGEST_FILE = 2**30  # bytes of one that is a file of a program, or rows
Kind = type | tuple[type, ...]
LONGEST_PAUSE = 3600.0  # seconds that a gateway may ask a device to wait


class GatewayUnreachable(Exception):
    """The gateway does not answer: try again later."""


class GatewayRefused(Exception):
    """The gateway has refused a request: its status, its sentence, and what else it says."""

    def __init__(self, status: int, content: dict[str, Any]) -> None:
        super().__init__(str(content.get("error") or f"The gateway answers with status {status}."))
        self.status, self.content = status, content


def has(content: Any, kinds: Mapping[str, Kind]) -> bool:
    """Whether something is an object whose facts are of these kinds."""
    return isinstance(content, dict) and all(
        isinstance(content.get(name), kind) and not isinstance(content.get(name), bool)
        for name, kind in kinds.items()
    )


@dataclass
class Answered:
    """The answer to a request."""

    status: int
    body: bytes

    def json(self, **kinds: Kind) -> dict[str, Any]:
        """The JSON object of the answer, whose facts must be of these kinds."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            content = None
        if not has(content, kinds):
            raise GatewayRefused(400, {"error": "The gateway's answer cannot be read."})
        return content


class _BrokenOff(http.client.HTTPException):
    """An answer whose connection broke; `answer` has the bytes that came."""

    def __init__(self, answer: Answered) -> None:
        super().__init__(f"its answer broke off after {len(answer.body)} bytes")
        self.answer = answer


class SignedHttp:
    """A connection to a gateway; `device` and `key` sign its requests.

    ca: the file of the authority that signs the gateway's certificate; None: the system's own.
    """

    def __init__(self, gateway: str, ca: Path | None = None) -> None:
        where = urlsplit(gateway)
        if where.scheme not in ("https", "http") or not where.hostname:
            raise ValueError(f"{gateway!r} is no address of a gateway: write https://HOST:PORT.")
        if where.scheme == "http" and where.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError(f"{gateway!r} has no TLS, which only this machine may do without.")
        self._where, self._context = where, None
        self._host = host_of(where.scheme, where.hostname, where.port)
        if where.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=str(ca) if ca else None)
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"{ca} cannot be read as a certificate ({error}).") from None
        self._connection: http.client.HTTPConnection | None = None
        self.device, self.key = "", b""
        self.bytes_down = self.bytes_up = 0  # of bodies

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        signed: bool = True,
        most: int = LARGEST_ANSWER,
        part: bool = False,
    ) -> Answered:
        """The answer to a request; raises if there is none, or if it is a refusal.

        most: bytes that are read of it; a longer one is a refusal, too. part: whether the beginning
        of an answer that broke off will do.

        A kept connection may have been closed meanwhile, so a request that got no answer is sent
        once more, signed anew.
        """
        for last in (False, True):
            fresh = self._connection is None
            headers = self._signature(method, target, body) if signed else {}
            if method in ("PUT", "POST"):
                headers["content-length"] = str(len(body))
            try:
                answer = self._send(method, target, body, headers, most)
                break
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise GatewayUnreachable(
                    f"The gateway's certificate is not trusted ({error.verify_message}): name the "
                    "right authority with --ca."
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if part and isinstance(error, _BrokenOff) and error.answer.body:
                    answer = error.answer
                    break
                if last or (fresh and isinstance(error, ConnectionRefusedError)):
                    raise GatewayUnreachable(
                        f"The gateway {self._where.netloc} does not answer ({error})."
                    ) from None
        self.bytes_up += len(body)
        self.bytes_down += len(answer.body)
        if answer.status >= 400:
            raise GatewayRefused(answer.status, _content(answer.body))
        return answer

    def download(self, target: str, size: int) -> bytes:
        """A file of so many bytes; where a connection breaks, the next goes on at that byte."""
        if size > LARGEST_FILE:
            raise GatewayRefused(400, {"error": f"The gateway offers over {LARGEST_FILE} bytes."})
        data = b""
        while len(data) < size:
            most = size - len(data)
            more = self.ask("GET", f"{target}?offset={len(data)}", most=most, part=True).body
            if not more:
                raise GatewayRefused(400, {"error": "The gateway sends less than it has offered."})
            data += more
        return data

    def _send(
        self, method: str, target: str, body: bytes, headers: dict[str, str], most: int
    ) -> Answered:
        if self._connection is None:
            host, port = self._where.hostname or "", self._where.port
            if self._context is not None:
                self._connection = http.client.HTTPSConnection(
                    host, port or 443, timeout=TIMEOUT, context=self._context
                )
            else:
                self._connection = http.client.HTTPConnection(host, port or 80, timeout=TIMEOUT)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request(method, target, body or None, headers)
        response = self._connection.getresponse()
        data, left = b"", response.length
        try:
            while len(data) <= most and (piece := response.read1(most + 1 - len(data))):
                data += piece
            left = response.length
        except OSError:
            left = response.length or 1
        finally:
            response.close()  # also where it was not read to its end
        if len(data) > most:
            self.close()
            raise GatewayRefused(400, {"error": f"The gateway's answer has over {most} bytes."})
        answer = Answered(response.status, data)
        if left:
            raise _BrokenOff(answer)
        if response.will_close:
            self.close()
        return answer

    def _signature(self, method: str, target: str, body: bytes) -> dict[str, str]:
        seconds, nonce = str(int(time.time())), secrets.token_hex(16)
        digest = hashlib.sha256(body).hexdigest()
        text = "\n".join((method, self._host, target, seconds, nonce, digest))
        return {
            "host": self._host,
            "fedrows-device": self.device,
            "fedrows-time": seconds,
            "fedrows-nonce": nonce,
            "fedrows-signature": hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest(),
        }

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def host_of(scheme: str, name: str, port: int | None) -> str:
    """The header Host of a request: the port is left out if it is the usual one."""
    name = f"[{name}]" if ":" in name else name
    usual = {"https": 443, "http": 80}[scheme]
    return name if port in (None, usual) else f"{name}:{port}"


def pause_of(content: dict[str, Any], usual: float) -> float:
    """The seconds that a gateway asks a device to wait, if they are some that can be waited."""
    after = content.get("after", usual)
    if type(after) not in (int, float) or not 0 <= after <= LONGEST_PAUSE:
        return usual
    return float(after)


def _content(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
