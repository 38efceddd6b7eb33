"""Files of a secure local cluster: an authority of its own, the nodes' certificates, the first user's login.

All lie in the cluster's folder, and only its owner may read them.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.node_file import NodeSecurity, write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

USER: Final = "admin"
CLIENT_FILE: Final = "client.properties"
_AUTHORITY_DAYS: Final = 3650
_NODE_DAYS: Final = 730
_RENEW_DAYS: Final = 60
"""`cluster up` makes another certificate for a node whose own ends sooner."""
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ITERATIONS: Final = 4096
_DAY: Final = datetime.timedelta(days=1)


class LocalSecurity:
    """The files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = folder / "authority.pem"
        self.client = folder / CLIENT_FILE
        self._authority_key = folder / "authority.key"

    def make_authority(self) -> None:
        """Make the authority, with a key of its own."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"strandline {secrets.token_hex(4)}")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        made = (
            _builder(name, name, key, _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        write_private(self._authority_key, _key_text(key))
        write_private(self.authority, _text(made))

    def renew(self, node: int) -> bool:
        """Make a node's certificate where it is missing, damaged, ends soon, or is not the authority's.

        Gives whether that was done. A node that runs takes it by itself. Raises CommandFailed where files
        cannot be read or written, the authority's among them.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        place = self._folder / f"node-{node}.pem"
        if self._has_certificate(place):
            return False
        try:
            authority = x509.load_pem_x509_certificate(self.authority.read_bytes())
            signing = serialization.load_pem_private_key(self._authority_key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise CommandFailed(
                f"node {node} needs a new certificate, and the cluster's authority cannot be read ({error})",
                f"bring {self.authority} and {self._authority_key} back",
                MISUSED,
            ) from None
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses])
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
        made = (
            _builder(_name(f"node {node}"), authority.subject, key, _NODE_DAYS)
            .add_extension(names, critical=False)
            .add_extension(usages, critical=False)
            .add_extension(issuer, critical=False)
            .sign(signing, hashes.SHA256())
        )
        try:
            # A node that looks between the two writes keeps what it has, and looks again.
            write_private(place.with_suffix(".key"), _key_text(key))
            write_private(place, _text(made))
        except OSError as error:
            raise CommandFailed(
                f"{place} cannot be written ({error.strerror or error})", "let this user write it", MISUSED
            ) from None
        return True

    def _has_certificate(self, place: Path) -> bool:
        """Whether a node can go on with what it has; an `up` that was interrupted may have left anything."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        soon = datetime.datetime.now(datetime.UTC) + _RENEW_DAYS * _DAY
        try:
            certificate = x509.load_pem_x509_certificate(place.read_bytes())
            if certificate.not_valid_after_utc <= soon or not place.with_suffix(".key").exists():
                return False
            authority = self.authority.read_bytes()
        except (FileNotFoundError, ValueError):
            return False
        except OSError as error:
            raise CommandFailed(
                f"{error.filename} cannot be read ({error.strerror or error})",
                "let this user read it",
                MISUSED,
            ) from None
        try:
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def make_user(self, bootstrap: str) -> str:
        """Draw the first user's password, write the client's file, and give `cluster.first_user`."""
        from strandline.node.config.first_user import FirstUser
        from strandline.node.kafka.handlers.scram import credential_of, salted
        from strandline.statemachine.controller.scram_credentials import ScramMechanism

        password = secrets.token_hex(24)
        salt = "".join(secrets.choice(_ALPHABET) for _ in range(26)).encode()
        mechanism = ScramMechanism.SHA_256
        keys = salted(mechanism, password, salt, _ITERATIONS)
        login = f'username="{USER}" password="{password}"'
        lines = [
            f"bootstrap.servers={bootstrap}",
            "security.protocol=SASL_SSL",
            "sasl.mechanism=SCRAM-SHA-256",
            f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {login};",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.authority}",
        ]
        write_private(self.client, "\n".join(lines) + "\n")
        return str(FirstUser(USER, credential_of(mechanism, keys, salt, _ITERATIONS)))

    def of_node(self, node: int, first_user: str) -> NodeSecurity:
        """Settings of one node's file."""
        certificate = self._folder / f"node-{node}.pem"
        files = (str(certificate), str(certificate.with_suffix(".key")), str(self.authority))
        return NodeSecurity(*files, first_user, f"User:{USER}")


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
        .add_extension(identifier, critical=False)
    )


def _text(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
