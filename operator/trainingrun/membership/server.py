"""The HTTP face of the membership service: parses messages, calls a run's host, writes replies and refusals.

`serve` is the whole program but for the records: who starts it gives it an adapter's. It answers nothing from
knowledge of its own. The endpoints and error codes are in `protocol.messages`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from trainingrun.membership.clock import Clock, SystemClock
from trainingrun.membership.errors import BadMessage, Refused
from trainingrun.membership.hosts import Hosts, RunHost
from trainingrun.membership.settings import Settings
from trainingrun.ports import Records
from trainingrun.protocol import wire
from trainingrun.protocol.messages import JoinRequest, Poll, Report

log = logging.getLogger("trainingrun.membership")
T = TypeVar("T")


class Endpoints:
    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.closing = asyncio.Event()

    async def join(self, request: web.Request) -> web.Response:
        message = await _read(JoinRequest, request)
        return _reply(await (await self._host(request)).join(message))

    async def report(self, request: web.Request) -> web.Response:
        message = await _read(Report, request)
        return _reply((await self._host(request)).report(message))

    async def poll(self, request: web.Request) -> web.Response:
        message = await _read(Poll, request)
        return _reply(await (await self._host(request)).poll(message, self.closing, request.transport))

    async def view(self, request: web.Request) -> web.Response:
        return _reply((await self._host(request)).view())

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def close(self, app: web.Application) -> None:
        """Answer every held poll with what its agent knows already, so that stopping is quick and no loss."""
        self.closing.set()
        self.hosts.wake_all()

    async def _host(self, request: web.Request) -> RunHost:
        return await self.hosts.get(request.match_info["uid"])


def make_app(hosts: Hosts) -> web.Application:
    endpoints = Endpoints(hosts)
    app = web.Application(middlewares=[_refusals], client_max_size=hosts.settings.body_limit_bytes)
    app.router.add_post("/v1/runs/{uid}/join", endpoints.join)
    app.router.add_post("/v1/runs/{uid}/report", endpoints.report)
    app.router.add_post("/v1/runs/{uid}/poll", endpoints.poll)
    app.router.add_get("/v1/runs/{uid}", endpoints.view)
    app.router.add_get("/healthz", endpoints.health)
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
) -> None:
    """Serve until `stop` is set, or until cancelled.

    `records`: an adapter, or a factory called once for each run; used from threads. `port` 0 takes a
    free one. `on_bound(host, port)` is told where the service listens. Raises OSError when it cannot.
    """
    make_records: Callable[[], Records] = records if callable(records) else lambda: records
    hosts = Hosts(make_records, settings or Settings(), clock or SystemClock())
    runner = web.AppRunner(make_app(hosts), handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    timers: list[asyncio.Task[object]] = [
        asyncio.create_task(hosts.keep_time()),
        asyncio.create_task(hosts.keep_reading()),
    ]
    try:
        site = web.TCPSite(runner, host, port)
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


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        log.warning("%s %s: %s: %s", request.method, request.path, refused.code, refused)
        return web.json_response({"error": refused.code, "message": str(refused)}, status=refused.status)
