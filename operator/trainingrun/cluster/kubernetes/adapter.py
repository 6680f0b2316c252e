"""The Kubernetes adapter: ports.ControlPort and ports.Records over the API. It translates, it decides nothing.

`KubePort` is the controller's, one thread uses it; `KubeRecords` is membership's, many threads do. What was read and
can change is read again; what is kept in memory is said in each place. Any call may raise Unavailable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes import events, nodes, pods, runs
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.creation import Creator
from trainingrun.cluster.kubernetes.freshness import Freshness, Watched
from trainingrun.cluster.kubernetes.membership_client import MembershipClient
from trainingrun.cluster.kubernetes.news import News
from trainingrun.cluster.kubernetes.objects import (
    CLAIMS,
    NODES,
    PODS,
    Object,
    RunRef,
    core_path,
    events_path,
    runs_path,
    selector,
    split_key,
)
from trainingrun.cluster.kubernetes.pod_template import TemplateSettings, render_pod_template
from trainingrun.cluster.kubernetes.published_authority import PublishedAuthority
from trainingrun.cluster.kubernetes.reading import reading
from trainingrun.cluster.kubernetes.record_store import RecordStore, create_record
from trainingrun.cluster.kubernetes.run_index import RunIndex
from trainingrun.cluster.kubernetes.settings import KubeSettings
from trainingrun.ports import (
    Claim,
    Conflict,
    EventRecord,
    Node,
    Pod,
    PodTemplate,
    Refused,
    RunObject,
    Unavailable,
)
from trainingrun.protocol.messages import DurableCheckpoint, RunView
from trainingrun.protocol.names import epoch_name, revision_name
from trainingrun.protocol.records import Epoch, Revision

log = logging.getLogger(__name__)


class KubeRecords:
    """Implements ports.Records. Thread-safe; one object serves all runs."""

    def __init__(self, api: Api, settings: KubeSettings, index: RunIndex | None = None) -> None:
        self._api = api
        self._index = index or RunIndex(api, settings.watch_namespaces, settings.cache_seconds)
        self._revisions = RecordStore(api, Revision, revision_name)
        self._epochs = RecordStore(api, Epoch, epoch_name)

    def run_exists(self, run_uid: str) -> str | None:
        run = self._index.alive(run_uid)
        return run.name if run is not None else None

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        run = self._index.where(run_uid)
        if run is None:
            return None
        with reading(f"run {run.key}"):
            item = self._api.get(runs_path(run.namespace, run.name)) or {}
        saved = ((item.get("status") or {}).get("checkpoint") or {}).get("durable") or {}
        if not saved.get("manifest") or (item.get("metadata") or {}).get("uid") != run_uid:
            return None
        return DurableCheckpoint(str(saved["manifest"]), int(saved["epoch"]), int(saved["step"]))

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        run = self._index.where(run_uid)
        return self._revisions.all(run) if run is not None else []

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        run = self._index.where(run_uid)
        found = self._epochs.all(run) if run is not None else []
        return [record for record in found if record.epoch > after]

    def create(self, record: Revision | Epoch) -> None:
        run = self._index.where(record.run_uid)
        if run is None or run.name != record.run:
            raise Conflict(f"{record.name}: run {record.run} with uid {record.run_uid} is gone")
        create_record(self._api, record, run)

    def revision(self, run: RunRef, name: str) -> Revision | None:
        """The revision of this name; not read again when it was read before."""
        return self._revisions.known(run, name)

    def forget_all_but(self, run_uids: set[str]) -> None:
        """Free what is kept of runs that are gone."""
        self._revisions.forget_all_but(run_uids)
        self._epochs.forget_all_but(run_uids)


class KubePort:
    """Implements ports.ControlPort. `news` and `freshness` are shared with the watch."""

    def __init__(
        self,
        api: Api,
        settings: KubeSettings,
        news: News | None = None,
        freshness: Freshness | None = None,
        clock: Callable[[], float] = time.time,
        instance: str = "controller",
    ) -> None:
        self.settings = settings
        self.news = news or News()
        self.freshness = freshness or Freshness()
        self._api = api
        self._clock = clock
        self._instance = instance
        self._index = RunIndex(api, settings.watch_namespaces, settings.cache_seconds, self._runs_listed)
        self._records = KubeRecords(api, settings, self._index)
        authority = PublishedAuthority(api, settings.operator_namespace, settings.ca_name)
        self._creator = Creator(api, authority.certificate)
        self._membership = MembershipClient(
            settings.membership_url,
            authority.certificate,
            Path(settings.token_file),
            settings.membership_seconds,
        )
        self._by_key: dict[str, RunRef] = {}
        self._nodes: Sequence[Node] = ()
        self._nodes_at = float("-inf")
        self._compared_at = float("-inf")
        self.beat()

    # records

    def run_exists(self, run_uid: str) -> str | None:
        return self._records.run_exists(run_uid)

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        return self._records.saved_checkpoint(run_uid)

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        return self._records.revisions(run_uid)

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        return self._records.epochs(run_uid, after)

    def create(self, record: Revision | Epoch) -> None:
        self._records.create(record)

    # runs

    def run_keys(self) -> Sequence[str]:
        runs_now = self._index.all()
        self._by_key = {run.ref.key: run.ref for run in runs_now}
        alive = {run.ref.uid for run in runs_now}
        self._records.forget_all_but(alive)
        self._creator.forget_all_but(alive)
        return sorted(self._by_key)

    def get_run(self, key: str) -> RunObject | None:
        self.beat()
        item = self._get(runs_path(*split_key(key)))
        if item is None:
            self._by_key.pop(key, None)
            return None
        self._index.note(item)
        self.freshness.listed(Watched.RUNS, [item])
        run = runs.translate(item)
        self._by_key[key] = RunRef(run.namespace, run.name, run.uid)
        return run

    def write_status(self, key: str, status: Mapping[str, Any], resource_version: str) -> None:
        namespace, name = split_key(key)
        body = runs.status_update(key, status, resource_version)
        try:
            self._api.replace(f"{runs_path(namespace, name)}/status", body)
        except Refused as refused:
            if refused.reason == "NotFound":
                raise Conflict(f"run {key} is gone") from refused
            raise

    def emit(self, key: str, event: EventRecord) -> None:
        run = self._run(key)
        if run is None:
            return  # an event for a run that is gone is dropped
        body = events.new_event(run, event, self._instance)
        path = events_path(run.namespace, body["metadata"]["name"])
        try:
            try:
                self._api.create(events_path(run.namespace), body)
            except Conflict:
                known = self._api.get(path)
                if known is not None:
                    self._api.patch(path, events.said_again(known, event))
        except (Refused, Conflict) as error:  # the run matters more than what is said of it
            log.warning("run %s: event %s was not written: %s", key, event.reason, error)

    # pods and nodes

    def pods(self, key: str) -> Sequence[Pod]:
        run = self._run(key)
        if run is None:
            return []
        with reading(f"pods of {key}"):
            items = self._api.list(core_path(PODS, run.namespace), selector(RUN_UID=run.uid))
        self.freshness.listed(Watched.PODS, items)
        items = [*items, *self._creator.squatters(run)]
        ready, now = self._node_ready(items), self._clock()
        found = [pods.translate(item, run, ready, now) for item in items]
        return [pod for pod in found if pod is not None]

    def nodes(self) -> Sequence[Node]:
        too_old = time.monotonic() - self._nodes_at > self.settings.cache_seconds
        if self.news.take_nodes_changed() or too_old:
            self._list_nodes()
        return self._nodes

    def claims(self, key: str, names: Collection[str]) -> Mapping[str, Claim | None]:
        namespace, _ = split_key(key)
        return {name: _claim(name, self._get(core_path(CLAIMS, namespace, name))) for name in sorted(names)}

    def pod_template(self, run: RunObject, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        settings = TemplateSettings(
            self.settings.trainer_image,
            self.settings.trainer_image_pull_policy,
            self.settings.membership_url,
        )
        return render_pod_template(run.name, run.uid, spec, settings)

    def create_pod(self, template: PodTemplate) -> None:
        run = RunRef(template.namespace, template.run, template.run_uid)
        revision = self._records.revision(run, template.revision)
        if revision is None:
            raise Unavailable(f"{template.revision} is not there yet, and its pods mount its spec")
        self._creator.create(template, run, revision.spec)

    def delete_pod(self, key: str, name: str, uid: str) -> None:
        namespace, _ = split_key(key)
        try:
            self._api.delete(core_path(PODS, namespace, name), uid)
        except Refused as refused:
            raise Unavailable(f"pod {name} cannot be deleted: {refused.message}") from refused

    # membership and waiting

    def membership(self, run_uid: str) -> RunView | None:
        return self._membership.view(run_uid)

    def wait_for_change(self, timeout_seconds: float) -> Collection[str] | None:
        self.beat()
        due = self._compared_at + self.settings.watch_compare_seconds
        if time.monotonic() >= due:
            self._compare_with_watch()
        return self.news.wait(min(timeout_seconds, self.settings.watch_compare_seconds))

    @property
    def known_runs(self) -> int:
        """How many runs there were at the last look."""
        return len(self._by_key)

    def beat(self) -> None:
        """The control loop lives: it waits, or works on a run."""
        self.beaten_at = time.monotonic()

    # the inside

    def _get(self, path: str) -> dict[str, Any] | None:
        with reading(path):
            return self._api.get(path)

    def _run(self, key: str) -> RunRef | None:
        if key not in self._by_key:
            self.get_run(key)
        return self._by_key.get(key)

    def _node_ready(self, items: Sequence[Object]) -> Mapping[str, bool]:
        """Of every node there is. A node that a pod is on and that the memory does not have may be new: look again."""
        used = {str((item.get("spec") or {}).get("nodeName") or "") for item in items} - {""}
        known = {node.name: node.ready for node in self.nodes()}
        if used - known.keys():
            known = {node.name: node.ready for node in self._list_nodes()}
        return known

    def _list_nodes(self) -> Sequence[Node]:
        with reading("nodes"):
            items = self._api.list(NODES)
        self.freshness.listed(Watched.NODES, items, complete=True)
        self._nodes, self._nodes_at = [nodes.translate(item) for item in items], time.monotonic()
        return self._nodes

    def _runs_listed(self, items: Sequence[Object]) -> None:
        self.freshness.listed(Watched.RUNS, items, complete=True)

    def _compare_with_watch(self) -> None:
        """LISTs that are made to find out about a watch that tells nothing any more, and to take its place."""
        self._compared_at = time.monotonic()
        try:
            self._index.all()
            with reading("pods and nodes"):
                items: list[Object] = []
                for namespace in self.settings.watch_namespaces or ("",):
                    path = core_path(PODS, namespace)
                    items += self._api.list(path, Label.RUN_UID.value, metadata_only=True)
                self.freshness.listed(Watched.PODS, items, complete=True)
                self.freshness.listed(Watched.NODES, self._api.list(NODES, metadata_only=True), complete=True)
        except Unavailable as error:
            log.info("the watch cannot be compared with what there is: %s", error)
        if self.freshness.stalls(self.settings.watch_compare_seconds / 2):
            self.news.nodes_changed()  # the watch does not tell, so the lists do


def _claim(name: str, item: Object | None) -> Claim | None:
    if item is None:
        return None
    spec, status = item.get("spec") or {}, item.get("status") or {}
    modes = status.get("accessModes") or spec.get("accessModes") or []
    return Claim(name, tuple(str(mode) for mode in modes), str(status.get("phase", "Pending")))
