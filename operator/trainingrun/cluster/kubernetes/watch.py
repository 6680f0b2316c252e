"""kopf as the event pump: it watches TrainingRuns, their pods and nodes, and says which runs may have changed.

The only file that knows kopf. Handlers put a key into the mailbox and the version into `Freshness`, nothing else: no
finalizers, no stored progress, no posted events, no peering, no results. Whenever kopf ends, for whatever reason, it is
started anew, and everything counts as changed; a pump that hangs instead is found out by `Freshness`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import kopf

from trainingrun.api.constants import GROUP, PLURAL, VERSION, Label
from trainingrun.cluster.kubernetes import nodes, runs
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.freshness import Freshness, Watched
from trainingrun.cluster.kubernetes.news import News
from trainingrun.cluster.kubernetes.objects import Object, label, metadata, run_ref, uid_of

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 30.0
STOP_SECONDS = 3.0  # kopf is given this long to end


class Backoffs:
    """Delays between tries, without an end: kopf gives up for ever at the end of a list."""

    def __iter__(self) -> Iterator[float]:
        delay = FIRST_BACKOFF_SECONDS
        while True:
            yield delay
            delay = min(delay * 1.6, LONGEST_BACKOFF_SECONDS)


class Handlers:
    """What to make of an event. Called in the pump's thread."""

    def __init__(self, news: News, freshness: Freshness) -> None:
        self._news = news
        self._freshness = freshness
        self._seen: dict[str, object] = {}  # by uid: what was news at last

    def on_run(self, kind: str | None, item: Object) -> None:
        self._freshness.heard(Watched.RUNS, item)
        if self._is_news(kind, item, runs.news_of(item)):
            self._news.run_changed(run_ref(item).key)

    def on_pod(self, kind: str | None, item: Object) -> None:
        self._freshness.heard(Watched.PODS, item)
        run = label(item, Label.RUN_NAME)
        if run:
            self._news.run_changed(f"{metadata(item).get('namespace', '')}/{run}")

    def on_node(self, kind: str | None, item: Object) -> None:
        self._freshness.heard(Watched.NODES, item)
        if self._is_news(kind, item, nodes.news_of(item)):
            self._news.nodes_changed()

    def _is_news(self, kind: str | None, item: Object, now: object) -> bool:
        uid = uid_of(item)
        if kind == "DELETED":
            self._seen.pop(uid, None)
            return True
        if self._seen.get(uid) == now:
            return False
        self._seen[uid] = now
        return True


class Watch:
    """Runs kopf in a thread of its own, until `stop` is called."""

    def __init__(
        self,
        api: Api,
        news: News,
        freshness: Freshness,
        namespaces: Sequence[str],
        inactivity_seconds: float,
        first_backoff_seconds: float = FIRST_BACKOFF_SECONDS,
    ) -> None:
        self._api = api
        self._news = news
        self._freshness = freshness
        self._namespaces = tuple(namespaces)
        self._inactivity = inactivity_seconds
        self._first_backoff = first_backoff_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="watch", daemon=True)
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.starts = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        loop, flag = self._running or (None, None)
        if loop is not None and flag is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(flag.set)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _pump(self) -> None:
        delay = self._first_backoff
        while not self._stop.is_set():
            self.starts += 1
            try:
                asyncio.run(self._operate())
            except Exception:
                log.exception("the watch broke; it starts anew in %.1f s", delay)
            else:
                if not self._stop.is_set():
                    log.error("the watch ended; it starts anew in %.1f s", delay)
            self._stop.wait(delay)
            delay = min(delay * 2, LONGEST_BACKOFF_SECONDS)
            self._news.anything_changed()

    async def _operate(self) -> None:
        where: dict[str, Any] = (
            {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        )
        # Not the thread's own event: kopf waits for one in a thread that outlives it, and then never ends.
        flag = asyncio.Event()
        self._running = (asyncio.get_running_loop(), flag)
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=self._registry(),
            settings=operator_settings(self._inactivity),
            standalone=True,
            stop_flag=flag,
            **where,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        handlers = Handlers(self._news, self._freshness)

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return connection(self._api)

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        async def on_run(type: str | None, body: kopf.Body, **_: Any) -> None:
            handlers.on_run(type, body)

        @kopf.on.event("", "v1", "pods", registry=registry)
        async def on_pod(type: str | None, body: kopf.Body, **_: Any) -> None:
            handlers.on_pod(type, body)

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def on_node(type: str | None, body: kopf.Body, **_: Any) -> None:
            handlers.on_node(type, body)

        return registry


def connection(api: Api) -> kopf.ConnectionInfo:
    """The same access for kopf. It asks again when the server does not take it any more: tokens are renewed."""
    configuration = api.configuration
    bearer = configuration.auth_settings().get("BearerToken")
    scheme, _, token = ((bearer["value"] or "") if bearer is not None else "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme.capitalize() or None,
        token=token or None,
    )


def operator_settings(inactivity_seconds: float) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # two at once would pause each other for ever
    settings.scanning.disabled = True  # needs rights of the whole cluster; our kinds do not come and go
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.networking.error_backoffs = Backoffs()
    settings.networking.connect_timeout = 5.0
    settings.networking.request_timeout = 60.0
    settings.watching.inactivity_timeout = inactivity_seconds
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["", "v1", "pods"] = Label.RUN_UID.value  # those that have it
    settings.process.ultimate_exiting_timeout = 20.0
    return settings
