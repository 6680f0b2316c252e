"""Asks the membership service what it knows of a run: HTTPS, its own CA only, the controller's projected token.

An answer or None; membership may be away at any time, and nothing depends on it but news. Called by the adapter.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from trainingrun.ports import Unavailable
from trainingrun.protocol import wire
from trainingrun.protocol.messages import RunView

log = logging.getLogger(__name__)


class MembershipClient:
    def __init__(
        self, url: str, authority: Callable[[], str], token_file: Path, timeout_seconds: float
    ) -> None:
        """`authority` gives the CA's certificate (PEM), and raises Unavailable while there is none."""
        self._url = url
        self._authority = authority
        self._token_file = token_file
        self._timeout = timeout_seconds
        self._trusted = ""
        self._opener: urllib.request.OpenerDirector | None = None
        self._failing = False

    def view(self, run_uid: str) -> RunView | None:
        """What membership knows of the run; None when it does not answer, in time or well, or does not know it."""
        try:
            view = self._ask(run_uid)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:  # it lives, and was asked for a run that it does not know
                return None
            self._failed(f"it answers {error.code}")
            return None
        except (OSError, http.client.HTTPException, ValueError, Unavailable) as error:
            self._failed(str(error))
            return None
        if self._failing:
            log.info("membership answers again")
        self._failing = False
        return view

    def _ask(self, run_uid: str) -> RunView:
        token = self._token_file.read_text().strip()  # the kubelet renews it
        request = urllib.request.Request(
            f"{self._url}/v1/runs/{run_uid}", headers={"Authorization": f"Bearer {token}"}
        )
        with self._connection().open(request, timeout=self._timeout) as answer:
            return wire.from_json(RunView, json.load(answer))

    def _connection(self) -> urllib.request.OpenerDirector:
        certificate = self._authority()
        if self._opener is None or certificate != self._trusted:
            context = ssl.create_default_context(cadata=certificate)
            no_proxy = urllib.request.ProxyHandler({})  # the service is inside of the cluster
            self._opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=context))
            self._trusted = certificate
        return self._opener

    def _failed(self, why: str) -> None:
        """One line for a row of failures."""
        if not self._failing:
            log.warning("membership at %s cannot be asked: %s", self._url, why)
        self._failing = True
