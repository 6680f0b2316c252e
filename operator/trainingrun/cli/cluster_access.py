"""How the verbs reach a cluster: which one, which namespace, one run by its name, and errors in plain words.

It reads, and knows nothing of what is printed. Everything that touches the world (the connection, the clock, the
waiting) is in `Surroundings`, which a test replaces.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainingrun.api.constants import API_VERSION, KIND
from trainingrun.api.errors import CliExit, Missing, UserError
from trainingrun.cli.cluster_rbac import needs_text
from trainingrun.cluster.kubernetes.objects import runs_path
from trainingrun.ports import Conflict, Refused, Unavailable

_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Reader(Protocol):
    """What the verbs use of cluster.kubernetes.api.Api. Any call may raise Unavailable or Refused."""

    def get(self, path: str) -> dict[str, Any] | None: ...
    def list(self, path: str, label_selector: str = "") -> list[dict[str, Any]]: ...
    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def text(self, path: str) -> str: ...


@dataclass(frozen=True)
class Cluster:
    api: Reader
    context: str  # for messages; "" inside a pod
    namespace: str  # that of the context


def connect(context: str | None) -> Cluster:
    """The cluster of a kubeconfig's context, or of the pod that this runs in. Asks it nothing. Raises UserError."""
    from trainingrun.cluster.kubernetes.api import Api  # takes a moment to import: only when it is needed

    api = Api.connect(context=context)
    name, namespace = _context_facts(context)
    return Cluster(api, name, namespace)


@dataclass(frozen=True)
class Surroundings:
    connect: Callable[[str | None], Cluster] = connect
    clock: Callable[[], float] = time.time  # seconds since 1970
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Place:
    """A namespace of a cluster, what is done there, and the clock of the one who does it."""

    cluster: Cluster
    namespace: str
    verb: str
    around: Surroundings

    @property
    def api(self) -> Reader:
        return self.cluster.api

    def now(self) -> float:
        """Seconds since 1970."""
        return self.around.clock()

    def sleep(self, seconds: float) -> None:
        self.around.sleep(seconds)

    @property
    def where(self) -> str:
        context = f" (context {self.cluster.context})" if self.cluster.context else ""
        return f"namespace {self.namespace}{context}"


class Unreachable(UserError):
    """The cluster does not answer now."""

    exit_code = CliExit.UNREACHABLE


class NotAllowed(UserError):
    """The cluster does not let this user do it."""

    exit_code = CliExit.UNREACHABLE


class NotAccepted(UserError):
    """The cluster will not have this value."""

    exit_code = CliExit.BAD_INPUT


@contextmanager
def a_place(around: Surroundings, context: str | None, namespace: str | None, verb: str) -> Iterator[Place]:
    """The place that the options name. Inside it an error of the cluster's becomes a UserError in plain words."""
    if namespace is not None:
        _check_name("--namespace", namespace)
    cluster = around.connect(context)
    place = Place(cluster, namespace or cluster.namespace, verb, around)
    try:
        yield place
    except Unavailable as error:
        raise Unreachable(
            f"the cluster{_of(cluster)} cannot be reached: {error}\n"
            "  hint: is it the right one? --context names another; `kubectl version` tries the same connection"
        ) from None
    except Refused as error:
        raise _refused(place, error) from None
    except Conflict as error:
        raise NotAccepted(
            f"{place.where}: somebody else changed it at the same time: {error}\n  hint: try again"
        ) from None


def _refused(place: Place, error: Refused) -> UserError:
    if error.reason == "Forbidden":
        return NotAllowed(
            f"{place.where}: {error.message}\n  hint: `{place.verb}` needs {needs_text(place.verb)}"
        )
    return NotAccepted(f"{place.where}: {error.message}")


def find_run(place: Place, name: str) -> dict[str, Any]:
    """The TrainingRun as stored. Raises Missing with the nearest name or the namespace where there is one."""
    _check_name("NAME", name)
    run = place.api.get(runs_path(place.namespace, name))
    if run is None:
        raise missing(place, name)
    return run


def runs_of(place: Place, everywhere: bool = False) -> list[dict[str, Any]]:
    """All runs of the namespace, or of all namespaces. Raises Missing when the cluster does not know the kind."""
    try:
        return place.api.list(runs_path("" if everywhere else place.namespace))
    except Refused as error:
        if error.reason == "NotFound":
            raise _no_kind(place) from None
        raise


def missing(place: Place, name: str) -> Missing:
    """The error for a run that is not there."""
    try:
        here = [run["metadata"]["name"] for run in runs_of(place)]
    except Missing as error:
        return error
    except Refused:
        here = []
    near = difflib.get_close_matches(name, here, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif elsewhere := _namespaces_of(place, name):
        hint = f"there is one in {' and '.join(elsewhere[:3])}: -n {elsewhere[0]}"
    elif here:
        shown = ", ".join(sorted(here)[:8])
        hint = f"there are {shown}{', …' if len(here) > 8 else ''}"
    else:
        hint = "-n names another namespace; `trainingrun list -A` shows the runs of all"
    return Missing(f"run {name}: there is no such {KIND} in {place.where}\n  hint: {hint}")


def _check_name(what: str, value: str) -> None:
    if not _DNS_LABEL.fullmatch(value):
        raise NotAccepted(
            f"{what} {value!r}: is no name of Kubernetes's\n  hint: lower-case letters, digits and '-'"
        )


def _no_kind(place: Place) -> Missing:
    return Missing(
        f"the cluster{_of(place.cluster)} knows no {KIND} ({API_VERSION})\n"
        "  hint: the operator is not installed there: helm install trainingrun helm/trainingrun"
    )


def _namespaces_of(place: Place, name: str) -> list[str]:
    try:
        found = runs_of(place, everywhere=True)
    except Refused:
        return []  # may not be looked at: then no hint
    return sorted(run["metadata"]["namespace"] for run in found if run["metadata"]["name"] == name)


def _of(cluster: Cluster) -> str:
    return f" of context {cluster.context}" if cluster.context else ""


def _context_facts(context: str | None) -> tuple[str, str]:
    """(name of the context, its namespace), from the kubeconfig that Api.connect reads, or of our own pod."""
    from kubernetes.config import incluster_config, kube_config

    file = os.environ.get("KUBECONFIG", "")
    inside = incluster_config.SERVICE_HOST_ENV_NAME in os.environ
    if inside and not file and context is None:
        is_there = _ACCOUNT_NAMESPACE.is_file()
        return "", _ACCOUNT_NAMESPACE.read_text().strip() if is_there else "default"
    where = file or str(Path.home() / ".kube" / "config")
    config = kube_config.KubeConfigMerger(where).config  # type: ignore[no-untyped-call]
    name = context or config["current-context"]
    chosen = config["contexts"].get_with_name(name)["context"]
    return str(name), str(chosen.safe_get("namespace") or "default")


class Notes:
    """Reads that the verb goes on without when they fail, and what was not shown because of that."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def try_list(self, place: Place, what: str, path: str, selector: str = "") -> list[dict[str, Any]] | None:
        """The objects; None, and a note, when the cluster does not show them."""
        try:
            return place.api.list(path, selector)
        except (Refused, Unavailable) as error:
            self.texts.append(f"{what} could not be looked at: {error}")
            return None
