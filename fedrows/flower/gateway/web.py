"""The gateway's web application: what devices may ask, as docs/device-protocol.md has it.

A request passes the `RequestGuard`, then its header is checked, then its body is read within the
limit of its path, then its signature and its nonce are checked. Only then anything is done.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from fedrows.flower.gateway.forms import (
    LARGEST_REGISTRATION,
    PhaseForm,
    UploadForm,
    key_in,
    read_form,
    version_of_registration,
)
from fedrows.flower.gateway.guard import RequestGuard, too_many
from fedrows.flower.gateway.limits import BytesUnderWay, RequestBuckets, RequestRate
from fedrows.flower.gateway.page_files import PageFiles
from fedrows.flower.gateway.programs import Programs
from fedrows.flower.gateway.signatures import Refusal, SignedHeader
from fedrows.flower.gateway.store import EnrolledDevice, GatewayStore, KeyTaken, TokenRefused
from fedrows.flower.gateway.waiting import LONGEST, WaitingDevices
from fedrows.flower.gateway.work import HeldWork, WorkStore
from fedrows.flower.launch.connections import PROOF
from fedrows.flower.launch.gate import declared, read_body
from fedrows.flower.wire.message import WireError
from fedrows.flower.wire.upload_checks import UploadRefused

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SMALL = 4096  # bytes of an enrolment
GONE = "The round has gone on without this device."
PER_DEVICE, PER_ADDRESS = RequestRate(10, 60), RequestRate(200, 2000)
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
ID = re.compile("[0-9a-f]{32}")

Answer = Callable[[EnrolledDevice, Request, bytes], Response]


@dataclass(frozen=True)
class GatewayLimits:
    """What devices may ask of a gateway."""

    piece: int = 16 * 2**20  # bytes of one request
    per_device: RequestRate = PER_DEVICE
    per_address: RequestRate = PER_ADDRESS
    after: float = 5.0  # seconds to the next check-in of a device without work


class DeviceApi:
    """Answers signed requests."""

    def __init__(self, store: GatewayStore, limits: GatewayLimits) -> None:
        self.store, self.limits = store, limits
        self.work, self.programs = WorkStore(store), Programs(store)
        self.waiting = WaitingDevices(self.work)
        self._devices = RequestBuckets(limits.per_device)
        self._bodies = BytesUnderWay(2 * max(limits.piece, LARGEST_REGISTRATION))

    def signed(self, answer: Answer, largest: int = 0) -> Callable[[Request], Any]:
        """An endpoint for devices alone, with bodies of up to `largest` bytes."""

        async def endpoint(request: Request) -> Response:
            device, body = await self.read(request, largest)
            return await run_in_threadpool(answer, device, request, body)

        return endpoint

    async def read(self, request: Request, largest: int) -> tuple[EnrolledDevice, bytes]:
        """Who sends a request, and its body; a Refusal if anything is wrong with it."""
        header = SignedHeader.read(request.headers)
        device = await run_in_threadpool(header.find, self.store)
        size = min(declared(request.scope) or 0, largest)
        sender = f"{device.id} {request.client.host if request.client else ''}"
        with self._bodies.hold(sender, size) as fits:  # nobody has proved to be the device yet
            if not fits:
                raise too_many(1.0)
            body = await _body(request, largest)
        host = request.headers.get("host", "")
        header.check(device, request.method, host, _target(request), body)
        if (seconds := self._devices.wait(device.id)) > 0:
            raise too_many(seconds)
        await run_in_threadpool(header.use, self.store)
        if PROOF in request.scope:
            request.scope[PROOF](True, device.id)
        return device, body

    async def enrol(self, request: Request) -> Response:
        """A new device, by a token."""
        body = await _body(request, SMALL)
        try:
            asked = json.loads(body)
            token, key, name = asked["token"], bytes.fromhex(asked["key"]), asked.get("name")
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
            asked, token, key, name = {}, None, b"", None
        if not isinstance(token, str) or not isinstance(asked, dict) or len(key) != 32:
            raise Refusal(
                400, "An enrolment has a token and a key of 32 bytes, and may have a name."
            )
        if name is not None and (not isinstance(name, str) or not NAME.fullmatch(name)):
            raise Refusal(400, "A name has 1 to 64 letters, digits, dots, dashes and underscores.")
        try:
            device = await run_in_threadpool(self.store.enrol, token[:200], key, name)
        except TokenRefused as error:
            raise Refusal(403, str(error)) from None
        return JSONResponse({"device": device.id, "name": device.name}, 201)

    def program(self, device: EnrolledDevice, request: Request, body: bytes) -> Response:
        """The present program's files."""
        id_ = self.programs.current()
        if id_ is None:
            raise Refusal(404, "The gateway has no program yet: its federation has begun no run.")
        form, files = self.programs.form(id_), self.programs.files(id_)
        private = form is not None and form.private
        return JSONResponse({"program": id_, "files": files, "private": private})

    def program_file(self, device: EnrolledDevice, request: Request, body: bytes) -> Response:
        """One file of a program."""
        id_, name = request.path_params["id"], request.path_params["file"]
        path = self.programs.path(id_) / name
        if not ID.fullmatch(id_) or not NAME.fullmatch(name) or not path.is_file():
            raise Refusal(404, "There is no such file of a program: ask for the program again.")
        return FileResponse(path, media_type="application/octet-stream")

    def register(self, device: EnrolledDevice, request: Request, body: bytes) -> Response:
        """A device's index sets."""
        program = request.query_params.get("program", "")
        if program != self.programs.current() or (form := self.programs.form(program)) is None:
            raise Refusal(409, "The program is not the present one: ask for the program again.")
        try:
            examples, _ = form.check(body)
            version, key = version_of_registration(body), key_in(body) if form.private else None
            self.store.register(device.id, program, version, examples, body, key)
        except (WireError, KeyTaken) as error:
            raise Refusal(422, f"The registration is refused: {error}") from None
        return JSONResponse({"version": version})

    async def check_in(self, request: Request) -> Response:
        """Whether there is work; the request may wait for it."""
        device, _ = await self.read(request, 0)
        seconds = _whole(request, "wait", LONGEST)
        await run_in_threadpool(self.store.note_seen, device.id)
        state = await run_in_threadpool(self._state, device)
        if state["work"] is None and seconds:
            if await self.waiting.wait(device.id, seconds, state["program"]):
                state = await run_in_threadpool(self._state, device)
            state["after"] = 0.0
        return JSONResponse(state)

    def _state(self, device: EnrolledDevice) -> dict[str, Any]:
        """What a device that checks in must know."""
        program, offered = self.programs.current(), self.work.offer(device.id)
        return {
            "program": program,
            "registration": self.store.registration(device.id, program),
            "after": self.limits.after,
            "work": None if offered is None else vars(offered),
        }

    def download(self, device: EnrolledDevice, request: Request, body: bytes) -> Response:
        """The message of some work."""
        work = self._work(device, request)
        _check_open(work)
        data = self.work.message(work.id, _whole(request, "offset", 2**40))
        if data is None:
            raise Refusal(410, GONE)
        return Response(data, media_type="application/octet-stream")

    def upload(self, device: EnrolledDevice, request: Request, body: bytes) -> Response:
        """A piece of an update; with the last one, all of it is checked."""
        offset, total = _whole(request, "offset", 2**40), _whole(request, "total", 2**40)
        sha256 = request.query_params.get("sha256", "")
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise Refusal(400, "An upload comes with `offset`, `total` and `sha256`.")
        work = self._work(device, request)
        if work.state == "taken" and work.sha256 == sha256:
            return JSONResponse({"received": work.received, "state": "taken"})
        if work.state == "taken":
            raise Refusal(409, "An upload for this work was taken already.", received=work.received)
        _check_open(work)
        form = read_form(work.form)
        if total > form.most:
            raise Refusal(413, f"An upload for this work has at most {form.most} bytes.")
        received = work.received
        if work.sha256 != sha256 or work.total != total:
            self.work.begin_upload(work.id, total, sha256)
            received = 0
        if offset > received or offset + len(body) > total:
            raise Refusal(
                409, f"The upload goes on at byte {received} of {total}.", received=received
            )
        if len(body) > received - offset:  # what was sent again is left out
            added = self.work.add_piece(work.id, received, body[received - offset :])
            if added is None:
                raise Refusal(410, GONE)
            received = added
        if received < total:
            return JSONResponse({"received": received, "state": "open"})
        return self._take(work, form, sha256)

    def _take(self, work: HeldWork, form: UploadForm | PhaseForm, sha256: str) -> Response:
        """Checks an upload that is complete, and stores it."""
        data = self.work.joined(work.id)
        if hashlib.sha256(data).hexdigest() != sha256:
            self.work.begin_upload(work.id, len(data), "")
            raise Refusal(409, "The upload is not what its digest says: send it again.", received=0)
        try:
            form.check(data)
        except UploadRefused as error:
            self.work.refuse(work.id)
            raise Refusal(422, f"The upload is refused: {str(error).rstrip('.')}.") from None
        if not self.work.take(work.id, data):
            raise Refusal(410, GONE)
        return JSONResponse({"received": len(data), "state": "taken"})

    def _work(self, device: EnrolledDevice, request: Request) -> HeldWork:
        work = self.work.find(device.id, request.path_params["id"])
        if work is None:
            raise Refusal(404, "There is no such work for this device: check in again.")
        return work


def _check_open(work: HeldWork) -> None:
    if work.state == "refused":
        raise Refusal(422, "The upload for this work was refused: check in for other work.")
    if work.state != "open" or work.deadline < time.time():
        raise Refusal(410, GONE)


def application(
    store: GatewayStore,
    page: Path | None = None,
    hosts: Collection[str] = LOOPBACK,
    limits: GatewayLimits | None = None,
) -> Starlette:
    """The gateway's application. page: a folder that is served at /. hosts: its own names."""
    limits = limits or GatewayLimits()
    api = DeviceApi(store, limits)
    routes: list[BaseRoute] = [
        Route("/v1/enrol", api.enrol, methods=["POST"]),
        Route("/v1/program", api.signed(api.program)),
        Route("/v1/program/{id}/{file}", api.signed(api.program_file)),
        Route("/v1/registration", api.signed(api.register, LARGEST_REGISTRATION), methods=["PUT"]),
        Route("/v1/check-in", api.check_in, methods=["POST"]),
        Route("/v1/work/{id}", api.signed(api.download)),
        Route("/v1/work/{id}", api.signed(api.upload, limits.piece), methods=["PUT"]),
    ]
    if page is not None:
        routes.append(Mount("/", PageFiles(directory=page, html=True)))
    guard = Middleware(RequestGuard, hosts=hosts, per_address=limits.per_address)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={404: _none, 405: _none})


async def _none(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse({"error": "The gateway has nothing of this name and method."}, status)


async def _body(request: Request, largest: int) -> bytes:
    """The body of a request, never more than may be."""
    length = declared(request.scope)
    if length is None and request.method in ("PUT", "POST"):
        raise Refusal(411, "A body must come with its length.")
    return await read_body(request.receive, largest, length)


def _target(request: Request) -> str:
    """The path and the query of a request as they were sent."""
    path = request.scope.get("raw_path") or request.scope["path"].encode()
    query = request.scope.get("query_string", b"")
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _whole(request: Request, name: str, most: int) -> int:
    """A whole number of the query, 0 if it is not there."""
    text = request.query_params.get(name, "0")
    if not re.fullmatch("[0-9]{1,15}", text) or int(text) > most:
        raise Refusal(400, f"`{name}` is a whole number from 0 to {most}.")
    return int(text)
