"""/healthz, /readyz and /metrics of the controller, from what the control loop and the watch show of themselves.

Ready: it works and hears what happens. Healthy: that is not so for long, so a restart may help. A failure says why, in
one line. Not being heard by the API server is no reason to restart: see `Freshness`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainingrun.cluster.kubernetes.freshness import Freshness, Watched
from trainingrun.cluster.kubernetes.settings import KubeSettings

ALL_ADDRESSES = "0.0.0.0"


class Loop(Protocol):
    """What is asked of the control loop's port."""

    @property
    def beaten_at(self) -> float:
        """When the loop showed last that it lives: seconds of time.monotonic."""

    @property
    def known_runs(self) -> int: ...


@dataclass(frozen=True)
class Health:
    loop: Loop
    freshness: Freshness
    settings: KubeSettings
    clock: Callable[[], float] = time.monotonic
    started: threading.Event = field(default_factory=threading.Event)  # set once the control loop may begin

    def not_ready(self) -> str:
        """Why it is not ready; "" when it is."""
        if not self.started.is_set():
            return "it has not started to work yet: the API server is away, or rights are missing"
        return self._silent() or self._stalled(self.settings.watch_stale_seconds)

    def not_healthy(self) -> str:
        """Why it should be restarted; "" when it should not."""
        longest = self.settings.watch_stale_seconds + self.settings.watch_dead_seconds
        return self._silent() or self._stalled(longest)

    def metrics(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("trainingrun_controller_runs", "Runs that there are.", self.loop.known_runs)
        silent = self.clock() - self.loop.beaten_at
        yield GaugeMetricFamily(
            "trainingrun_controller_loop_silent_seconds",
            "Since the control loop was last seen at work.",
            silent,
        )
        behind = GaugeMetricFamily(
            "trainingrun_controller_watch_behind_seconds",
            "How far a watch is behind lists.",
            labels=["resource"],
        )
        stalls = {stall.resource: stall.seconds for stall in self.freshness.stalls(0.0)}
        for which in Watched:
            behind.add_metric([which.value], stalls.get(which, 0.0))
        yield behind

    def _silent(self) -> str:
        silent = self.clock() - self.loop.beaten_at
        if silent <= self.settings.heartbeat_seconds:
            return ""
        return f"the control loop was not seen at work for {silent:.0f} s"

    def _stalled(self, longer_than_seconds: float) -> str:
        return "; ".join(str(stall) for stall in self.freshness.stalls(longer_than_seconds))


class _Metrics(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterable[Metric]:
        return self._health.metrics()


class Server:
    """Serves in threads of its own. `port` 0 takes a free one. Raises OSError when it cannot listen."""

    def __init__(
        self, pages: dict[str, Callable[[], tuple[int, str]]], port: int, host: str = ALL_ADDRESSES
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                status, text = page() if page is not None else (404, "no such page\n")
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are no news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name=f"http-{self.port}", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve_health(health: Health, port: int, host: str = ALL_ADDRESSES) -> Server:
    def page(why: Callable[[], str]) -> Callable[[], tuple[int, str]]:
        def answer() -> tuple[int, str]:
            text = why()
            return (503, f"{text}\n") if text else (200, "ok\n")

        return answer

    return Server({"/healthz": page(health.not_healthy), "/readyz": page(health.not_ready)}, port, host)


def serve_metrics(health: Health, port: int, host: str = ALL_ADDRESSES) -> Server:
    registry = CollectorRegistry()
    registry.register(_Metrics(health))
    return Server({"/metrics": lambda: (200, generate_latest(registry).decode())}, port, host)
