"""The certificate authority of membership: made once, never replaced, and what its certificates are good for."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from tests.operator.gate_world import FakeServer

from trainingrun.cluster.kubernetes import certificates
from trainingrun.cluster.kubernetes.authority import BadAuthority, ensure_authority
from trainingrun.cluster.kubernetes.certificates import Authority
from trainingrun.ports import Unavailable

NOW = datetime(2026, 5, 1, tzinfo=UTC)
NAME, NAMESPACE = "tr-membership-ca", "operator"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}"
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"


def ensure(server: FakeServer, now: datetime = NOW) -> Authority:
    return ensure_authority(server, NAMESPACE, NAME, now)


def test_the_authority_is_made_once_and_its_public_half_is_published():
    server = FakeServer()
    first = ensure(server)
    assert base64.b64decode(server.objects[SECRET]["data"]["ca.crt"]).decode() == first.certificate_pem
    assert server.objects[CONFIG_MAP]["data"] == {"ca.crt": first.certificate_pem}
    del server.objects[CONFIG_MAP]
    again = ensure(server, NOW + timedelta(days=300))
    assert again.certificate_pem == first.certificate_pem
    assert again.key_pem == first.key_pem
    assert server.objects[CONFIG_MAP]["data"] == {"ca.crt": first.certificate_pem}


def test_of_two_that_start_at_once_both_use_what_the_faster_one_made():
    class Racing(FakeServer):
        """Nobody sees the Secret until both have looked."""

        def __init__(self) -> None:
            super().__init__()
            self.looked = threading.Barrier(2)

        def create(self, path: str, body: Any) -> Any:
            self.looked.wait(5)
            return super().create(path, body)

    server, found = Racing(), []
    threads = [threading.Thread(target=lambda: found.append(ensure(server))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({authority.certificate_pem for authority in found}) == 1
    assert len(found) == 2


def test_an_api_server_that_is_away_is_no_reason_for_a_new_authority():
    server = FakeServer()
    ensure(server)
    server.away = True
    with pytest.raises(Unavailable):
        ensure(server)


def _other(data: dict[str, str]) -> dict[str, str]:
    return data | {"ca.key": _encoded(certificates.new_authority("other", NOW).key_pem)}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _leaf(data: dict[str, str]) -> dict[str, str]:
    authority = certificates.new_authority("leaf", NOW)
    return data | {"ca.crt": base64.b64encode(_certificate(authority, ("a",))).decode()}


def _certificate(authority: Authority, hosts: tuple[str, ...]) -> bytes:
    return certificates.server_certificate(authority, hosts, NOW).pem.partition(b"-----BEGIN PRIVATE")[0]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda data: {}, "has no ca.crt and no ca.key"),
        (lambda data: {"tls.crt": "x"}, "has no ca.crt and no ca.key"),
        (lambda data: {"ca.crt": data["ca.crt"]}, "has no ca.key"),
        (lambda data: data | {"ca.crt": data["ca.crt"][:100]}, "cannot be read"),
        (lambda data: data | {"ca.key": "no base64"}, "cannot be read"),
        (lambda data: data | {"ca.key": data["ca.crt"]}, "cannot be read"),
        (_other, "has a certificate and a key that do not belong together"),
        (_leaf, "has a certificate that is no root authority"),
    ],
)
def test_a_secret_that_is_damaged_or_somebody_else_s_is_named_and_left_alone(spoil, problem):
    server = FakeServer()
    ensure(server)
    secret = server.objects[SECRET]
    secret["data"] = spoil(secret["data"])
    before = dict(secret["data"])
    del server.objects[CONFIG_MAP]
    with pytest.raises(BadAuthority, match=f"^Secret operator/tr-membership-ca: {problem}") as raised:
        ensure(server)
    assert "hint: restore it; or delete it" in str(raised.value)
    assert server.objects[SECRET]["data"] == before
    assert CONFIG_MAP not in server.objects


def test_an_authority_lasts_ten_years_and_an_expired_one_is_an_error():
    server = FakeServer()
    ensure(server)
    ensure(server, NOW + timedelta(days=3649))
    with pytest.raises(BadAuthority, match="expired at 2036-04-28"):
        ensure(server, NOW + timedelta(days=3651))


def test_a_server_s_certificate_is_renewed_in_time_and_never_outlives_its_authority():
    authority = certificates.new_authority("a", NOW)
    fresh = certificates.server_certificate(authority, ["a"], NOW)
    assert fresh.renew_at == NOW + timedelta(days=60)
    late = NOW + timedelta(days=3640)
    last = certificates.server_certificate(authority, ["a"], late)
    certificate = x509.load_pem_x509_certificate(last.pem)
    assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
    assert last.renew_at < certificate.not_valid_after_utc


# over a real TLS connection


def handshake(server: ssl.SSLContext, trusted: Authority, host: str, strict: bool = True) -> dict[str, Any]:
    """The peer's certificate as the client sees it. Raises ssl.SSLError."""
    client = ssl.create_default_context(cadata=trusted.certificate_pem)
    if strict:
        client.verify_flags |= ssl.VERIFY_X509_STRICT  # what newer Pythons ask for
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.settimeout(5)

        def answer() -> None:
            try:
                with server.wrap_socket(ours, server_side=True) as connection:
                    connection.recv(1)
            except OSError:
                pass

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with client.wrap_socket(theirs, server_hostname=host) as connection:
                connection.send(b"x")
                return dict(connection.getpeercert() or {})
        finally:
            theirs.close()
            thread.join(5)


def a_server(authority: Authority) -> ssl.SSLContext:
    hosts = certificates.service_names("tr-membership", "operator", ["membership.example.com", "10.1.2.3"])
    certificate = certificates.server_certificate(authority, hosts, datetime.now(UTC))
    return certificates.server_context(certificate)


@pytest.mark.parametrize(
    "host",
    [
        "tr-membership.operator.svc",
        "tr-membership.operator.svc.cluster.local",
        "tr-membership.operator",
        "tr-membership",
        "localhost",
        "127.0.0.1",
        "membership.example.com",
        "10.1.2.3",
    ],
)
def test_the_server_is_trusted_under_each_of_its_names(host):
    authority = certificates.new_authority("a", datetime.now(UTC))
    assert handshake(a_server(authority), authority, host)["subjectAltName"]


def test_the_server_is_not_trusted_under_another_name_or_by_another_authority():
    authority = certificates.new_authority("a", datetime.now(UTC))
    server = a_server(authority)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'tr-membership\.other\.svc'"):
        handshake(server, authority, "tr-membership.other.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, certificates.new_authority("a", datetime.now(UTC)), "localhost")


def test_a_server_changes_its_certificate_while_it_serves():
    authority = certificates.new_authority("a", datetime.now(UTC))
    server = a_server(authority)
    before = handshake(server, authority, "localhost")["serialNumber"]
    assert handshake(server, authority, "localhost")["serialNumber"] == before
    certificates.use(server, certificates.server_certificate(authority, ["localhost"], datetime.now(UTC)))
    assert handshake(server, authority, "localhost")["serialNumber"] != before
