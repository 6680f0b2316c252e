"""Creates a run's pods, and before them what they mount: the spec of their revision and membership's certificate.

Names are a function of the run, so creating twice is a conflict and never a duplicate. Something of another owner that
has one of our names is never touched: for a pod it is remembered, so that it can be shown; for a ConfigMap it is an
error that names it. Called by the adapter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainingrun.api.constants import FieldManager, Label
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.objects import (
    CONFIG_MAPS,
    PODS,
    Object,
    RunRef,
    core_path,
    label,
    metadata,
    owner_reference,
    owner_uid,
    run_labels,
)
from trainingrun.cluster.kubernetes.pod_storage import CA_KEY, SPEC_KEY, membership_config_map
from trainingrun.cluster.kubernetes.pod_template import pod_manifest
from trainingrun.cluster.kubernetes.reading import reading
from trainingrun.ports import Conflict, PodTemplate, Refused

LOOK_AGAIN_SECONDS = 30.0  # what is mounted was there, and is taken to be there still, for this long


class Creator:
    """`authority` gives the certificate of membership's CA (PEM), and raises Unavailable while there is none."""

    def __init__(
        self, api: Api, authority: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._authority = authority
        self._clock = clock
        self._ensured: dict[tuple[str, str, str], tuple[Mapping[str, str], float]] = {}
        self._squatters: dict[str, set[str]] = {}  # by run uid

    def create(self, template: PodTemplate, run: RunRef, spec: Mapping[str, Any]) -> None:
        """Raises Conflict when another owner has the name, Refused and Unavailable."""
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
        self._ensure(run, template.revision, {SPEC_KEY: text}, immutable=True)
        self._ensure(run, membership_config_map(run.name), {CA_KEY: self._authority()}, immutable=False)
        body = pod_manifest(template)
        try:
            self._api.create(core_path(PODS, run.namespace), body)
        except Conflict:
            if not self._is_ours(body, run):
                raise

    def squatters(self, run: RunRef) -> list[dict[str, Any]]:
        """Pods of other owners that were found under names of this run, as they are now. Raises Unavailable."""
        found = []
        for name in sorted(self._squatters.get(run.uid, ())):
            with reading(f"pod {name}"):
                pod = self._api.get(core_path(PODS, run.namespace, name))
            if pod is None or owner_uid(pod) == run.uid:
                self._squatters[run.uid].discard(name)
            else:
                found.append(pod)
        return found

    def forget_all_but(self, run_uids: set[str]) -> None:
        self._squatters = {uid: names for uid, names in self._squatters.items() if uid in run_uids}
        self._ensured = {key: value for key, value in self._ensured.items() if key[0] in run_uids}

    def _is_ours(self, wanted: Object, run: RunRef) -> bool:
        """Whether the name's pod is the very one that we want: our own earlier try, or a second controller's."""
        name = str(metadata(wanted)["name"])
        with reading(f"pod {name}"):
            found = self._api.get(core_path(PODS, run.namespace, name))
        if found is not None and owner_uid(found) != run.uid:
            self._squatters.setdefault(run.uid, set()).add(name)
        if found is None or owner_uid(found) != run.uid or metadata(found).get("deletionTimestamp"):
            return False
        same = (Label.SLOT, Label.INCARNATION, Label.REVISION)
        return all(label(found, key) == label(wanted, key) for key in same)

    def _ensure(self, run: RunRef, name: str, data: Mapping[str, str], immutable: bool) -> None:
        """A ConfigMap of the run with just this data. Not looked at again for a while when nothing changed."""
        key = (run.uid, run.namespace, name)
        before, looked_at = self._ensured.get(key, ({}, float("-inf")))
        now = self._clock()
        if before == data and now - looked_at < LOOK_AGAIN_SECONDS:
            return
        path = core_path(CONFIG_MAPS, run.namespace, name)
        with reading(f"ConfigMap {name}"):
            found = self._api.get(path)
        if found is not None and owner_uid(found) != run.uid:
            hint = "rename or delete it, or give the run another name"
            raise Refused(
                "AlreadyExists", f"ConfigMap {run.namespace}/{name} belongs to somebody else; hint: {hint}"
            )
        if found is None or found.get("data") != data:
            self._write(run, name, data, immutable)
        self._ensured[key] = (dict(data), now)

    def _write(self, run: RunRef, name: str, data: Mapping[str, str], immutable: bool) -> None:
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": run.namespace,
                "labels": run_labels(run),
                "ownerReferences": [owner_reference(run)],
            },
            "data": dict(data),
        }
        if immutable:
            body["immutable"] = True
        self._api.apply(core_path(CONFIG_MAPS, run.namespace, name), body, FieldManager.CONTROLLER.value)
