"""The HTTP face of the membership service: parses messages, calls a run's host, writes replies and refusals.

`serve` is the whole program but for the records, and on a cluster the gate and the certificate: who starts it gives it
an adapter's. It answers nothing from knowledge of its own. The endpoints and error codes are in `protocol.messages`.
With a gate nothing but its health is told to a caller that has not proven who it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from trainingrun.membership.access import Access, check_join, check_run, check_seat
from trainingrun.membership.clock import Clock, SystemClock
from trainingrun.membership.errors import BadMessage, Refused
from trainingrun.membership.hosts import Hosts, RunHost
from trainingrun.membership.settings import Settings
from trainingrun.ports import Caller, Gate, Records
from trainingrun.protocol import wire
from trainingrun.protocol.messages import JoinRequest, Poll, Report

log = logging.getLogger("trainingrun.membership")
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CALLER = web.RequestKey("caller", Caller)
OPEN = frozenset({"/healthz", "/readyz"})  # for kubelets, which have no token
_OFTEN = frozenset({401, 403, 503})


class Endpoints:
    def __init__(self, hosts: Hosts, access: Access | None = None) -> None:
        self.hosts = hosts
        self.access = access
        self.closing = asyncio.Event()
        self._told: dict[str, float] = {}  # when a refusal of this code was last written to the log

    async def join(self, request: web.Request) -> web.Response:
        message = await _read(JoinRequest, request)
        if (caller := _caller(request)) is not None:
            check_join(caller, message)
        return _reply(await (await self._host(request)).join(message))

    async def report(self, request: web.Request) -> web.Response:
        message = await _read(Report, request)
        return _reply((await self._seat_host(request, message)).report(message))

    async def poll(self, request: web.Request) -> web.Response:
        message = await _read(Poll, request)
        host = await self._seat_host(request, message)
        return _reply(await host.poll(message, self.closing, request.transport))

    async def view(self, request: web.Request) -> web.Response:
        return _reply((await self._host(request)).view())

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def close(self, app: web.Application) -> None:
        """Answer every held poll with what its agent knows already, so that stopping is quick and no loss."""
        self.closing.set()
        self.hosts.wake_all()
        if self.access is not None:
            self.access.close()

    async def _host(self, request: web.Request) -> RunHost:
        return await self.hosts.get(request.match_info["uid"])

    async def _seat_host(self, request: web.Request, message: Report | Poll) -> RunHost:
        """The host of the run, for a message that its sender may send."""
        host = await self._host(request)
        if (caller := _caller(request)) is not None:
            check_seat(caller, message.slot, host.seat_of(message.session))
        return host

    @web.middleware
    async def refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            self._tell(request, refused)
            return web.json_response({"error": refused.code, "message": str(refused)}, status=refused.status)

    def _tell(self, request: web.Request, refused: Refused) -> None:
        """A line in the log; of those that a thousand agents can cause in a second, one a second."""
        now = asyncio.get_running_loop().time()
        often = refused.status in _OFTEN and now - self._told.get(refused.code, -1.0) < 1.0
        if not often:
            self._told[refused.code] = now
        level = logging.DEBUG if often else logging.WARNING
        log.log(level, "%s %s: %s: %s", request.method, request.path, refused.code, refused)

    @web.middleware
    async def authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Before anything is read or looked up: strangers cost nothing and learn nothing, not even which runs are."""
        if self.access is not None and request.path not in OPEN:
            # An agent joins seldom, and then its pod must be there; what it says later may rest on that for a while.
            anew = request.path.endswith("/join")
            caller = await self.access.caller(request.headers.get("Authorization", ""), anew)
            check_run(caller, request.match_info.get("uid", ""))
            request[CALLER] = caller
        return await handler(request)


def make_app(hosts: Hosts, access: Access | None = None) -> web.Application:
    endpoints = Endpoints(hosts, access)
    app = web.Application(
        middlewares=[endpoints.refusals, endpoints.authenticate],
        client_max_size=hosts.settings.body_limit_bytes,
    )
    app.router.add_post("/v1/runs/{uid}/join", endpoints.join)
    app.router.add_post("/v1/runs/{uid}/report", endpoints.report)
    app.router.add_post("/v1/runs/{uid}/poll", endpoints.poll)
    app.router.add_get("/v1/runs/{uid}", endpoints.view)
    for path in sorted(OPEN):
        app.router.add_get(path, endpoints.health)
    app.on_shutdown.append(endpoints.close)
    return app


async def serve(
    records: Records | Callable[[], Records],
    host: str,
    port: int,
    settings: Settings | None = None,
    on_bound: Callable[[str, int], None] | None = None,
    *,
    stop: asyncio.Event | None = None,
    clock: Clock | None = None,
    tls: ssl.SSLContext | None = None,
    gate: Gate | None = None,
) -> None:
    """Serve until `stop` is set, or until cancelled.

    `records`: an adapter, or a factory called once for each run; used from threads. `port` 0 takes a
    free one. `on_bound(host, port)` is told where the service listens. With `tls` it speaks HTTPS only; with
    `gate`, every caller must prove who it is. Raises OSError when it cannot listen.
    """
    make_records: Callable[[], Records] = records if callable(records) else lambda: records
    hosts = Hosts(make_records, settings or Settings(), clock or SystemClock())
    access = Access(gate) if gate is not None else None
    app = make_app(hosts, access)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    timers: list[asyncio.Task[object]] = [
        asyncio.create_task(hosts.keep_time()),
        asyncio.create_task(hosts.keep_reading()),
    ]
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        await site.start()
        bound = runner.addresses[0]
        log.info("membership listens on %s:%d", bound[0], bound[1])
        if on_bound is not None:
            on_bound(bound[0], bound[1])
        timers.append(asyncio.create_task((stop or asyncio.Event()).wait()))
        # A timer that ends has failed, and a service that keeps no time must not pretend to be alive.
        done, _ = await asyncio.wait(timers, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in timers:
            task.cancel()
        await asyncio.gather(*timers, return_exceptions=True)
        await runner.cleanup()


async def _read(kind: type[T], request: web.Request) -> T:
    """Raises BadMessage, naming the path of what is wrong."""
    try:
        return wire.from_json(kind, json.loads(await request.text()))
    except web.HTTPRequestEntityTooLarge as error:
        raise BadMessage(f"$: {error.text}") from error
    except wire.WireError as error:
        raise BadMessage(str(error)) from error
    except (ValueError, LookupError, RecursionError, web.RequestPayloadError) as error:
        # not JSON, numbers beyond all measure, an unknown character set, nesting without end, a broken gzip body
        raise BadMessage(f"$: not JSON: {str(error)[:200]}") from error


def _reply(message: object) -> web.Response:
    return web.json_response(wire.to_json(message))


def _caller(request: web.Request) -> Caller | None:
    """None where there is no gate: then everybody may say everything."""
    return request.get(CALLER)
