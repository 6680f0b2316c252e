"""The certificate authority of the membership service: one key pair for each installation, made once, kept in a Secret.

The Secret is created and never changed: of two processes that start at once one makes it and both use it. Its public
half is also in a ConfigMap, from which the controller hands it to the workers, who trust nothing else. A Secret that is
damaged or not ours stops the service with one clear error: a new authority would cut off every worker that runs.
Called by membership_main.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trainingrun.api.constants import FieldManager
from trainingrun.api.errors import UserError
from trainingrun.cluster.kubernetes.certificates import Authority, new_authority
from trainingrun.ports import Conflict, Unavailable

CERTIFICATE, KEY = "ca.crt", "ca.key"  # keys of the Secret; the ConfigMap has the first


class BadAuthority(UserError):
    """The Secret is there, and no server can be run from what is in it."""


class Store(Protocol):
    """What is needed of the API client."""

    def get(self, path: str) -> dict[str, Any] | None: ...

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]: ...


def ensure_authority(api: Store, namespace: str, name: str, now: datetime | None = None) -> Authority:
    """The authority of Secret `name`, made if it is not there, and its certificate in the ConfigMap of that name.

    Raises BadAuthority, and Refused and Unavailable of the API client.
    """
    moment = now or datetime.now(UTC)
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    found = api.get(f"{secrets}/{name}")
    if found is None:
        made = new_authority(f"{name}.{namespace}", moment)
        try:
            found = api.create(secrets, _secret(namespace, name, made))
        except Conflict:
            found = api.get(f"{secrets}/{name}")  # another one was faster
    if found is None:
        raise Unavailable(f"Secret {namespace}/{name} comes and goes")
    authority = read_authority(found, moment)
    publish(api, namespace, name, authority)
    return authority


def publish(api: Store, namespace: str, name: str, authority: Authority) -> None:
    """The certificate into the ConfigMap of that name, whatever was there."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": _labels()},
        "data": {CERTIFICATE: authority.certificate_pem},
    }
    api.apply(f"/api/v1/namespaces/{namespace}/configmaps/{name}", body, FieldManager.MEMBERSHIP)


def read_authority(secret: Mapping[str, Any], now: datetime) -> Authority:
    """Raises BadAuthority, which says what is wrong with the Secret and what to do."""
    metadata = secret.get("metadata") or {}
    where = f"Secret {metadata.get('namespace', '')}/{metadata.get('name', '')}"

    def bad(problem: str) -> BadAuthority:
        return BadAuthority(
            f"{where}: {problem}; it must hold the certificate authority of membership ({CERTIFICATE}, {KEY})\n"
            "  hint: restore it; or delete it and restart membership, controller and all workers: "
            "a new one is made, and nobody who knows the old one trusts it"
        )

    data = secret.get("data") or {}
    missing = [key for key in (CERTIFICATE, KEY) if not data.get(key)]
    if missing:
        raise bad(f"has no {' and no '.join(missing)}")
    try:
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data[CERTIFICATE], validate=True))
        key = serialization.load_pem_private_key(base64.b64decode(data[KEY], validate=True), password=None)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, binascii.Error, x509.ExtensionNotFound) as error:
        raise bad(f"cannot be read ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise bad("has a key that is not one of an elliptic curve")
    if not constraints.ca or certificate.issuer != certificate.subject:
        raise bad("has a certificate that is no root authority")
    if certificate.public_key() != key.public_key():
        raise bad("has a certificate and a key that do not belong together")
    if certificate.not_valid_after_utc <= now:
        raise bad(f"has a certificate that expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    return Authority(certificate, key)


def _secret(namespace: str, name: str, authority: Authority) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": _labels()},
        "immutable": True,
        "data": {CERTIFICATE: _encoded(authority.certificate_pem), KEY: _encoded(authority.key_pem)},
    }


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _labels() -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "trainingrun",
        "app.kubernetes.io/component": "membership",
        "app.kubernetes.io/managed-by": FieldManager.MEMBERSHIP,
    }
