"""The membership service on a cluster: `python -m trainingrun.cluster.kubernetes.membership_main`.

A thin program: the service over the cluster's records, behind HTTPS and the gate. Everything it needs is in its
environment (`settings`). It waits for an API server that is away, and is gone within seconds of a SIGTERM: agents go on
with whoever comes next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from trainingrun.api.errors import UserError
from trainingrun.cluster.kubernetes import certificates, logs
from trainingrun.cluster.kubernetes.adapter import KubeRecords
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.authority import ensure_authority
from trainingrun.cluster.kubernetes.certificates import Authority
from trainingrun.cluster.kubernetes.gate import TokenGate
from trainingrun.cluster.kubernetes.health import ALL_ADDRESSES, Server
from trainingrun.cluster.kubernetes.run_index import RunIndex
from trainingrun.cluster.kubernetes.settings import KubeSettings
from trainingrun.membership.server import serve
from trainingrun.ports import Gate, Records, Refused, Unavailable
from trainingrun.protocol.names import TOKEN_AUDIENCE

log = logging.getLogger("trainingrun.membership")

RETRY_SECONDS = 1.0
LOOK_SECONDS = 3600.0  # how often the age of the server's certificate is looked at
BEAT_SECONDS = 1.0
HANGS_SECONDS = 30.0
STOP_SECONDS = 2.5  # whatever still hangs then, in a call to the API server say, is not waited for
GATE_SECONDS = 2.0  # an agent waits 5 s for the answer to its join, for which the gate asks up to three times


class Health:
    """What /healthz and /readyz say. They are answered by threads, so that a loop that hangs is found out."""

    def __init__(self) -> None:
        self.listens = False
        self._beaten_at = time.monotonic()

    async def beat(self) -> NoReturn:
        while True:
            self._beaten_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def pages(self) -> dict[str, Callable[[], tuple[int, str]]]:
        return {"/healthz": self._healthz, "/readyz": self._readyz}

    def _healthz(self) -> tuple[int, str]:
        silent = time.monotonic() - self._beaten_at
        return (200, "ok\n") if silent < HANGS_SECONDS else (503, f"nothing was done for {silent:.0f} s\n")

    def _readyz(self) -> tuple[int, str]:
        return self._healthz() if self.listens else (503, "it does not listen yet, or not any more\n")


async def run(
    settings: KubeSettings, api: Api, records: Callable[[], Records], gate: Gate, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set. Raises UserError, Refused, and OSError when it cannot listen."""
    health = Health()
    server = Server(health.pages(), settings.health_port)
    timers: list[asyncio.Task[NoReturn]] = [asyncio.create_task(health.beat())]
    try:
        authority = await _authority(settings, api, stop)
        if authority is None:
            return
        hosts = certificates.service_names(settings.membership_name, settings.operator_namespace)
        first = certificates.server_certificate(authority, hosts, datetime.now(UTC))
        tls = certificates.server_context(first)
        timers.append(asyncio.create_task(_renew(tls, authority, hosts, first.renew_at)))
        for timer in timers:  # one that ends has failed, and then this must not go on as if nothing were
            timer.add_done_callback(lambda _: stop.set())

        def bound(host: str, port: int) -> None:
            health.listens = True

        port = settings.membership_port
        await serve(records, ALL_ADDRESSES, port, None, bound, stop=stop, tls=tls, gate=gate)
    finally:
        health.listens = False
        for timer in timers:
            timer.cancel()
        ended = await asyncio.gather(*timers, return_exceptions=True)
        server.close()
    for result in ended:
        if not isinstance(result, asyncio.CancelledError):
            raise RuntimeError("a timer of membership has failed") from result


async def _authority(settings: KubeSettings, api: Api, stop: asyncio.Event) -> Authority | None:
    """Tried until the API server answers; None when `stop` was set meanwhile."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(
                ensure_authority, api, settings.operator_namespace, settings.ca_name
            )
        except Unavailable as error:
            log.warning("the certificate authority cannot be read now: %s", error)
        try:
            await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
        except TimeoutError:
            continue
    return None


async def _renew(
    tls: ssl.SSLContext, authority: Authority, hosts: Sequence[str], renew_at: datetime
) -> NoReturn:
    """A new certificate before the old one ends, for the connections that come then; those that are there stay."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = datetime.now(UTC)
        if now >= renew_at:
            certificate = certificates.server_certificate(authority, hosts, now)
            certificates.use(tls, certificate)  # in the loop's thread, as every handshake is
            renew_at = certificate.renew_at
            log.info("the server's certificate was renewed; next on %s", renew_at.date())


async def _main(settings: KubeSettings) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def asked_to_stop() -> None:
        log.info("asked to stop")
        stop.set()
        loop.call_later(STOP_SECONDS, os._exit, 0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    api = Api.connect(settings.request_seconds)
    gate = TokenGate(Api.connect(GATE_SECONDS), TOKEN_AUDIENCE, settings.controller_account)
    index = RunIndex(api, settings.watch_namespaces, settings.cache_seconds)
    # One for each run, so that what it remembers of a run goes with the run.
    await run(settings, api, lambda: KubeRecords(api, settings, index), gate, stop)


def main() -> int:
    """The exit code: 0 after a SIGTERM, that of a UserError, or 1."""
    try:
        settings = KubeSettings.from_environment(os.environ)
        logs.set_up(settings.log_format, settings.log_level)
        asyncio.new_event_loop().run_until_complete(_main(settings))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Refused as refused:
        print(f"error: the API server refuses membership's account: {refused.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: membership cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # threads that wait for the API server must not hold up the end
