"""X.509 for the membership service: a root authority, certificates of the server by it, and a TLS context that can
change them while it serves. Pure but for random keys: the time is a parameter, and nothing touches a disk or a cluster.
Called by `authority` and membership_main, and by tests.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
SERVER_DAYS = 90
CLOCK_SKEW = timedelta(hours=1)  # a certificate counts from a little earlier: clocks of nodes differ


@dataclass(frozen=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return _key_pem(self.key).decode()


@dataclass(frozen=True)
class ServerCertificate:
    pem: bytes  # certificate and key
    renew_at: datetime


def new_authority(common_name: str, now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
    certificate = (
        _builder(subject, subject, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def service_names(service: str, namespace: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """What the server is called: by workers, by people with a forwarded port, and `extra`. IP addresses may be among
    them."""
    short = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
    return (*dict.fromkeys((*short, f"{short[-1]}.cluster.local", "localhost", "127.0.0.1", *extra)),)


def server_certificate(authority: Authority, hosts: Sequence[str], now: datetime) -> ServerCertificate:
    """A new key, and a certificate for it in all these names."""
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + timedelta(days=SERVER_DAYS), authority.certificate.not_valid_after_utc)
    issuer_key = authority.key.public_key()
    certificate = (
        _builder(x509.Name([]), authority.certificate.subject, key.public_key(), now, ends)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + _key_pem(key)
    return ServerCertificate(pem, now + (ends - now) * 2 / 3)


def server_context(certificate: ServerCertificate) -> ssl.SSLContext:
    """TLS 1.3 with this certificate. `use` gives it another one while it serves."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    use(context, certificate)
    return context


def use(context: ssl.SSLContext, certificate: ServerCertificate) -> None:
    """From the next handshake on. Not while a handshake begins in another thread."""
    # The ssl module reads certificates from files only. This one is never on a disk.
    file = os.memfd_create("server-certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate.pem)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(ends)
    )


def _usage(
    digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
