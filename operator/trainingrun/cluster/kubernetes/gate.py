"""Finds out on a cluster who calls the membership service: a projected token, its pod, and the run that owns the pod.

The API server vouches for the token (TokenReview for our audience, bound to a pod); the pod itself says which seat it
is. A pod counts only with everything that the controller gives it: the name, the labels, and as owner a run of the same
namespace. What was found out counts until the token expires, whether the API server can be reached or not. A pod that
is being deleted still speaks: its last words matter, and the state machine fences it by its incarnation. Once it is
gone it cannot join again; until its token expires it may report in the seat that it has. Called by membership's access.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from trainingrun.api.constants import API_VERSION, GROUP, KIND, PLURAL, VERSION, Label
from trainingrun.ports import Caller, Denied, Refused, Unavailable
from trainingrun.protocol import names

REMEMBERED = 8192  # tokens; a pod has one an hour
REMEMBER_SECONDS = 7200.0  # for longer than a projected token lives; the limit for those that live for years
DENIED_SECONDS = (
    3.0  # a refusal counts for this long: what was too early for a lagging API server is asked again
)
AWAY_SECONDS = 2.0  # after a failure to ask, nobody is kept waiting for the next one for this long
TOKEN_LIMIT = 16384  # characters

_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_ACCOUNT = "system:serviceaccount:"


class Reader(Protocol):
    """What the gate needs of the API client."""

    def get(self, path: str) -> dict[str, Any] | None: ...

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Admitted:
    caller: Caller
    until: float  # seconds since 1970


T = TypeVar("T")


class Memory(Generic[T]):
    """The newest `limit` values, by key. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._values: OrderedDict[bytes, T] = OrderedDict()
        self._limit = limit

    def get(self, key: bytes) -> T | None:
        return self._values.get(key)

    def put(self, key: bytes, value: T) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._limit:
            self._values.popitem(last=False)

    def drop(self, key: bytes) -> None:
        self._values.pop(key, None)


class TokenGate:
    """Thread-safe. `wall` is the clock that tokens expire by: seconds since 1970."""

    def __init__(
        self,
        api: Reader,
        audience: str,
        controller_account: str,
        wall: Callable[[], float] = time.time,
        remembered: int = REMEMBERED,
    ) -> None:
        self._api = api
        self._audience = audience
        self._controller = controller_account
        self._wall = wall
        self._lock = threading.Lock()
        # Apart, so that strangers who make up tokens cannot push out those who are known.
        self._admitted: Memory[Admitted] = Memory(remembered)
        self._denied: Memory[tuple[float, str]] = Memory(remembered)
        self._away: tuple[float, str] = (float("-inf"), "")  # the API server is not asked again before then

    def known(self, token: str) -> Caller | None:
        with self._lock:
            admitted = self._admitted.get(_key(token))
        return admitted.caller if admitted is not None and self._wall() < admitted.until else None

    def admit(self, token: str) -> Caller:
        self._recall_denial(token)
        try:
            admitted = self._ask(token)
        except Unavailable:
            caller = self.known(token)
            if caller is not None:
                return caller
            raise
        except Denied as denied:
            with self._lock:
                self._admitted.drop(_key(token))
                self._denied.put(_key(token), (self._wall() + DENIED_SECONDS, str(denied)))
            raise
        with self._lock:
            self._admitted.put(_key(token), admitted)
        return admitted.caller

    def _recall_denial(self, token: str) -> None:
        with self._lock:
            until, reason = self._denied.get(_key(token)) or (float("-inf"), "")
        now = self._wall()
        if now < until <= now + DENIED_SECONDS:  # a clock that was set back must not make it last
            raise Denied(reason)

    # finding out

    def _ask(self, token: str) -> Admitted:
        until = self._look_at(token)
        now, (away_until, why) = self._wall(), self._away
        if now < away_until <= now + AWAY_SECONDS:
            raise Unavailable(why)
        try:
            return Admitted(self._verified(token), min(until, self._wall() + REMEMBER_SECONDS))
        except Refused as refused:
            # Our own account lacks a right: nothing that the caller did.
            error = Unavailable(f"membership's account is refused by the API server: {refused.message}")
            self._away = (self._wall() + AWAY_SECONDS, str(error))
            raise error from refused
        except Unavailable as error:
            self._away = (self._wall() + AWAY_SECONDS, str(error))
            raise

    def _look_at(self, token: str) -> float:
        """When the token expires. Raises Denied for what no API server need be asked about."""
        claims = _claims(token)
        expires, audiences = claims.get("exp"), claims.get("aud")
        if not isinstance(expires, int | float) or isinstance(expires, bool):
            raise Denied("the token says no time at which it expires; only projected tokens are taken")
        if expires <= self._wall():
            raise Denied("the token has expired")
        if self._audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise Denied(f"the token is not for the audience {self._audience}")
        return float(expires)

    def _verified(self, token: str) -> Caller:
        review = self._api.create(
            _REVIEWS,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": token, "audiences": [self._audience]},
            },
        )
        status = review.get("status") or {}
        if status.get("authenticated") is not True:
            raise Denied(
                f"the API server does not know this token: {status.get('error') or 'no reason given'}"
            )
        if self._audience not in (status.get("audiences") or []):
            raise Denied(f"the token is not for the audience {self._audience}")
        user = status.get("user") or {}
        name = str(user.get("username") or "")
        if self._controller and name == self._controller:
            return Caller()
        return self._pod_caller(name, user.get("extra") or {})

    def _pod_caller(self, user: str, extra: Mapping[str, Any]) -> Caller:
        namespace = user.removeprefix(_ACCOUNT).partition(":")[0] if user.startswith(_ACCOUNT) else ""
        pod_name, pod_uid = _only(extra, _POD_NAME), _only(extra, _POD_UID)
        if not namespace or not pod_name or not pod_uid:
            raise Denied(f"the token of {user or 'nobody'} is not bound to a pod")
        pod = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{pod_name}")
        where = f"pod {namespace}/{pod_name}"
        if pod is None:
            raise Denied(f"{where} does not exist any more")
        metadata: dict[str, Any] = pod["metadata"]
        if metadata.get("uid") != pod_uid:
            raise Denied(f"{where} is another one than the pod of this token")
        run, run_uid = _owner(metadata, where)
        labels = metadata.get("labels") or {}
        slot, incarnation = (_number(labels, label, where) for label in (Label.SLOT, Label.INCARNATION))
        if labels.get(Label.RUN_UID, run_uid) != run_uid:
            raise Denied(f"{where}: its label {Label.RUN_UID} does not name the run that owns it")
        if pod_name != names.pod_name(run, slot, incarnation):
            raise Denied(
                f"{where} does not have the name of slot {slot}, incarnation {incarnation} of run {run}"
            )
        # Owners are of the pod's own namespace, but nobody checks that when a pod is made.
        found = self._api.get(f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{run}")
        if found is None or found["metadata"].get("uid") != run_uid:
            raise Denied(f"{where}: there is no run {namespace}/{run} with uid {run_uid}")
        return Caller(run_uid, slot, incarnation, pod_name, namespace)


def _owner(metadata: Mapping[str, Any], where: str) -> tuple[str, str]:
    """(name, uid) of the run that controls the pod."""
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION:
            return str(owner["name"]), str(owner["uid"])
    raise Denied(f"{where} is no worker of a {KIND}: none owns it")


def _number(labels: Mapping[str, str], label: Label, where: str) -> int:
    text = labels.get(label, "")
    if not (text.isascii() and text.isdecimal()):
        raise Denied(f"{where}: its label {label} is {text!r}, not a number")
    return int(text)


def _only(extra: Mapping[str, Any], key: str) -> str:
    values = extra.get(key) or []
    return str(values[0]) if len(values) == 1 else ""


def _claims(token: str) -> dict[str, Any]:
    """What a token says of itself, unverified: enough to turn away what can never be taken."""
    parts = token.split(".")
    if len(parts) == 3 and len(token) <= TOKEN_LIMIT:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (ValueError, RecursionError):
            claims = None
        if isinstance(claims, dict):
            return claims
    raise Denied("that is no token of a service account")


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
