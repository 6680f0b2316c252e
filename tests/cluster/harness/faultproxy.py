"""A reverse proxy in front of an API server that misbehaves on command, for a client under test.

It can stall watches (the connection stays, nothing arrives), cut them, end them as expired, and answer chosen
requests itself with an error or not at all. Everything else it passes on unchanged, the Authorization header too.
It runs in a thread of its own; its methods are for the test's thread. Protocol upgrades (exec, port-forward) are not
passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from tests.cluster.harness import network
from tests.cluster.harness.fault_rules import HANG, Request, Rule, gone_event, status_body
from yarl import URL

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "date"}
COMMAND_SECONDS = 10.0
Result = TypeVar("Result")


class FaultProxy:
    """A proxy to `backend`, such as https://127.0.0.1:6443; a context manager.

    `ca` verifies an https backend. `identity` (certificate, key) is presented to it: then every client has that
    identity; without it each client's own token counts. `tls` (certificate, key) makes the proxy itself speak https.
    `namespace` is the network namespace in which it listens (default: the host's); the backend is always reached
    from the host's.
    """

    def __init__(
        self,
        backend: str,
        ca: Path | None = None,
        identity: tuple[Path, Path] | None = None,
        tls: tuple[Path, Path] | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        namespace: Path | None = None,
    ) -> None:
        self._backend, self._ca, self._identity, self._tls = backend.rstrip("/"), ca, identity, tls
        self._listening = network.listener(address, port, namespace)
        self.address, self.port = self._listening.getsockname()[:2]
        self.rules: list[Rule] = []
        self._seen: list[Request] = []
        self._watches: dict[asyncio.Event, web.Request] = {}  # by the event that ends it as expired
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}:{self.port}"

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in the order in which they came."""
        return list(self._seen)

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(COMMAND_SECONDS)
        self._loop.close()

    # Commands

    def stall_watches(self) -> None:
        """From now on, watches, old and new, keep their connection and deliver nothing."""
        self._do(self._set_flow(False))

    def resume_watches(self) -> None:
        """They go on with what was held back."""
        self._do(self._set_flow(True))

    def cut_watches(self) -> int:
        """Breaks the connections of all open watches; gives their number."""
        return self._do(self._cut())

    def expire_watches(self) -> int:
        """Ends all open watches as the API server does when their resource version is too old; their number."""
        return self._do(self._expire())

    def answer(
        self,
        status: int,
        path: str = "",
        method: str = "",
        watch: bool | None = None,
        times: int | None = None,
        retry_after_seconds: int | None = None,
    ) -> Rule:
        """Adds a rule (see Rule), which from now on answers what it fits. HANG never answers."""
        rule = Rule(status, path, method, watch, times, retry_after_seconds)
        self.rules = [*self.rules, rule]
        return rule

    def hang(self, path: str = "", method: str = "", times: int | None = None) -> Rule:
        return self.answer(HANG, path, method, times=times)

    def clear(self) -> None:
        """Withdraws all rules. Requests that hang go on hanging, until their client gives up."""
        self.rules = []

    # In the proxy's thread

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(COMMAND_SECONDS)

    async def _start(self) -> None:
        self._flow = asyncio.Event()
        self._flow.set()
        trust: ssl.SSLContext | bool = True
        if self._backend.startswith("https"):
            trust = ssl.create_default_context(cafile=self._ca)
            if self._identity:
                trust.load_cert_chain(*self._identity)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        server: ssl.SSLContext | None = None
        if self._tls:
            server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            server.load_cert_chain(*self._tls)
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{rest:.*}", self._handle)
        # A client that goes away ends its handler, also one that hangs.
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._listening, ssl_context=server).start()

    async def _stop(self) -> None:
        for request in list(self._watches.values()):
            _abort(request)
        await self._runner.cleanup()
        await self._session.close()

    async def _set_flow(self, flowing: bool) -> None:
        if flowing:
            self._flow.set()
        else:
            self._flow.clear()

    async def _cut(self) -> int:
        cut = list(self._watches.values())
        for request in cut:
            _abort(request)
        return len(cut)

    async def _expire(self) -> int:
        open_now = list(self._watches)
        for expired in open_now:
            expired.set()
        return len(open_now)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Request(request.method, request.path, dict(request.query))
        place = len(self._seen)
        self._seen.append(seen)
        rule = next((rule for rule in self.rules if rule.fits(seen)), None)
        if rule is None:
            return await self._pass_on(request, seen, place)
        rule.hits += 1
        self._seen[place] = replace(seen, answered=rule.status, by_rule=True)
        if rule.status == HANG:
            await asyncio.Event().wait()
        body = status_body(rule.status)
        return web.Response(
            status=rule.status, body=body, content_type="application/json", headers=rule.headers
        )

    async def _pass_on(self, request: web.Request, seen: Request, place: int) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        target = URL(f"{self._backend}{request.raw_path}", encoded=True)
        try:
            async with self._session.request(
                request.method,
                target,
                headers=headers,
                data=await request.read() or None,
                allow_redirects=False,
            ) as answer:
                self._seen[place] = replace(seen, answered=answer.status)
                out = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP_BY_HOP:
                        out.headers.add(name, value)
                await out.prepare(request)
                if seen.is_watch and answer.status == 200:
                    await self._watch(request, answer, out)
                else:
                    async for chunk in answer.content.iter_any():
                        await out.write(chunk)
                await out.write_eof()
                return out
        except aiohttp.ClientError:
            # As the backend did: no answer, or one that breaks off. What is returned reaches nobody.
            _abort(request)
            return web.Response(status=502)

    async def _watch(
        self, request: web.Request, answer: aiohttp.ClientResponse, out: web.StreamResponse
    ) -> None:
        expired = asyncio.Event()
        self._watches[expired] = request
        copying = asyncio.create_task(self._copy(answer, out))
        expiring = asyncio.create_task(expired.wait())
        try:
            await asyncio.wait({copying, expiring}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                await copying
            else:
                copying.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await copying
                await out.write(gone_event())
        finally:
            copying.cancel()
            expiring.cancel()
            del self._watches[expired]

    async def _copy(self, answer: aiohttp.ClientResponse, out: web.StreamResponse) -> None:
        async for chunk in answer.content.iter_any():
            await self._flow.wait()
            await out.write(chunk)
        # A stalled watch does not end either.
        await self._flow.wait()


def _abort(request: web.Request) -> None:
    if isinstance(request.transport, asyncio.Transport):
        request.transport.abort()
