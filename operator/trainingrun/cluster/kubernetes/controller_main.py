"""The controller on a cluster: `python -m trainingrun.cluster.kubernetes.controller_main`.

A thin program: the control loop over the Kubernetes adapter, with kopf as its ears and two small HTTP servers. All it
needs is in its environment (`settings`). It keeps nothing: it may be killed at any time, and two at once do no harm.
Exit codes: 0 after SIGTERM, that of a UserError (see api.errors), 1 when the loop broke.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from trainingrun.api.errors import Missing, UserError
from trainingrun.cluster.kubernetes import health, logs, permissions
from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.freshness import Freshness
from trainingrun.cluster.kubernetes.news import News
from trainingrun.cluster.kubernetes.objects import runs_path
from trainingrun.cluster.kubernetes.settings import KubeSettings
from trainingrun.cluster.kubernetes.watch import Watch
from trainingrun.control.loop import ControllerSettings, run_controller
from trainingrun.ports import Refused, Unavailable

log = logging.getLogger("trainingrun.controller")

STOP_SECONDS = 4.0  # after SIGTERM; whatever still hangs then is not waited for
RETRY_SECONDS = 1.0  # between tries to reach an API server that is away at the start


@dataclass(frozen=True)
class Program:
    """All parts of the controller, not yet started."""

    api: Api
    settings: KubeSettings
    port: KubePort
    watch: Watch
    health: health.Health


def assemble(api: Api, settings: KubeSettings, news: News) -> Program:
    freshness = Freshness()
    port = KubePort(api, settings, news, freshness, instance=socket.gethostname())
    watch = Watch(api, news, freshness, settings.watch_namespaces, settings.watch_inactivity_seconds)
    return Program(api, settings, port, watch, health.Health(port, freshness, settings))


def check(program: Program, stop: threading.Event) -> None:
    """Wait for the API server, and find out what would else show as silence. Raises UserError."""
    namespaces = program.settings.watch_namespaces
    while not stop.is_set():
        program.port.beat()
        try:
            permissions.require(program.api, namespaces)
            program.api.list(runs_path(namespaces[0] if namespaces else ""), metadata_only=True)
        except Unavailable as error:
            log.warning("the API server cannot be asked yet: %s", error)
            stop.wait(RETRY_SECONDS)
        except Refused as refused:
            raise Missing(
                f"the cluster has no TrainingRuns: {refused.message}\n"
                "  hint: install the CustomResourceDefinition; the chart does"
            ) from None
        else:
            program.health.started.set()
            return


def run(program: Program, stop: threading.Event) -> None:
    """Work until `stop` is set. Raises UserError, and OSError when it cannot listen."""
    settings = program.settings
    servers = [health.serve_health(program.health, settings.health_port)]
    if settings.metrics_port:
        servers.append(health.serve_metrics(program.health, settings.metrics_port))
    try:
        check(program, stop)
        log.info("looking after %s", ", ".join(settings.watch_namespaces) or "all namespaces")
        program.watch.start()
        run_controller(program.port, ControllerSettings(resync_seconds=settings.resync_seconds), stop)
    finally:
        program.watch.stop()
        for server in servers:
            server.close()


def main(environment: Mapping[str, str] | None = None) -> int:
    stop, news = threading.Event(), News()

    def asked_to_stop(number: int, frame: object) -> None:
        stop.set()
        news.anything_changed()  # so that nobody waits for it
        guard = threading.Timer(STOP_SECONDS, os._exit, (0,))
        guard.daemon = True
        guard.start()

    try:
        settings = KubeSettings.from_environment(os.environ if environment is None else environment)
        logs.set_up(settings.log_format, settings.log_level)
        program = assemble(Api.connect(settings.request_seconds), settings, news)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, asked_to_stop)
        run(program, stop)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"error: cannot listen: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
