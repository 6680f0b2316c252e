"""What the controller's account must be allowed to do, and the check at its start.

Without it a missing right shows as silence: a watch that is refused is tried for ever. `RIGHTS` is the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainingrun.api.constants import GROUP, PLURAL
from trainingrun.api.errors import UserError
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.reading import reading

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Right:
    group: str
    resource: str  # "pods", or with a subresource "trainingruns/status"
    verbs: tuple[str, ...]
    whole_cluster: bool = False  # the kind has no namespaces

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


RIGHTS = (
    Right(GROUP, PLURAL, ("get", "list", "watch")),
    Right(GROUP, f"{PLURAL}/status", ("update",)),
    Right("", "pods", ("get", "list", "watch", "create", "delete")),
    Right("", "nodes", ("list", "watch"), whole_cluster=True),
    Right("apps", "controllerrevisions", ("get", "list", "create")),
    Right("", "configmaps", ("get", "create", "patch")),
    Right("", "persistentvolumeclaims", ("get",)),
    Right("events.k8s.io", "events", ("get", "create", "patch")),
)


class NotAllowed(UserError):
    """The account lacks rights that the controller cannot work without."""


def require(api: Api, namespaces: Sequence[str]) -> None:
    """Raises NotAllowed, naming every right that is missing, and Unavailable."""
    missing = list(_missing(api, namespaces))
    if missing:
        raise NotAllowed(
            "the controller's account may not:\n  "
            + "\n  ".join(missing)
            + "\n  hint: the chart's roles give these rights; was it installed for these namespaces?"
        )


def _missing(api: Api, namespaces: Sequence[str]) -> Iterator[str]:
    for right in RIGHTS:
        everywhere = right.whole_cluster or not namespaces
        for namespace in ("",) if everywhere else namespaces:
            verbs = [verb for verb in right.verbs if not _is_allowed(api, right, verb, namespace)]
            if verbs:
                where = f" in namespace {namespace}" if namespace else ""
                yield f"{', '.join(verbs)} {right}{where}"


def _is_allowed(api: Api, right: Right, verb: str, namespace: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "verb": verb, "namespace": namespace}
    if subresource:
        attributes["subresource"] = subresource
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    with reading("own rights"):
        answer = api.create(_REVIEWS, body)
    return bool((answer.get("status") or {}).get("allowed"))
