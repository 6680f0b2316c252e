"""The certificate of membership's CA as membership publishes it. The controller hands it on to the pods, and trusts it.

It reads the ConfigMap and never the Secret with the key. Called by the adapter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.objects import CONFIG_MAPS, core_path
from trainingrun.cluster.kubernetes.pod_storage import CA_KEY
from trainingrun.cluster.kubernetes.reading import reading
from trainingrun.ports import Unavailable

MAX_AGE_SECONDS = 30.0


class PublishedAuthority:
    """The certificate of membership's CA, from the ConfigMap that membership publishes; read again now and then."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        max_age_seconds: float = MAX_AGE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._where = (namespace, name)
        self._max_age = max_age_seconds
        self._clock = clock
        self._text = ""
        self._read_at = float("-inf")

    def certificate(self) -> str:
        """PEM text. While the API server does not answer, the last one. Raises Unavailable while there is none."""
        now = self._clock()
        if self._text and now - self._read_at < self._max_age:
            return self._text
        namespace, name = self._where
        try:
            with reading(f"ConfigMap {namespace}/{name}"):
                found = self._api.get(core_path(CONFIG_MAPS, namespace, name))
            text = str(((found or {}).get("data") or {}).get(CA_KEY, ""))
            if not text.strip():
                raise Unavailable(
                    f"ConfigMap {namespace}/{name} has no {CA_KEY}: membership has not started yet"
                )
        except Unavailable:
            if not self._text:
                raise
        else:
            self._text = text
        self._read_at = now
        return self._text
