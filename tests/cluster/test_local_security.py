"""A secure local cluster's files: who may read them, what they say, and that other programs take them."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from strandline.cluster import client_settings, local_security
from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.client_settings import CURRENT
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_files import Description
from strandline.cluster.ports import Ports
from strandline.node.config.first_user import first_user
from strandline.node.config.node_config import load
from strandline.node.kafka.handlers.scram import is_password
from strandline.node.tls.keeper import load as load_tls
from strandline.statemachine.controller.scram_credentials import ScramMechanism
from tests.kafka.wire.certificates import Authority


@pytest.fixture(autouse=True)
def no_login() -> Iterator[None]:
    """No settings of a client, neither before nor after."""
    before = CURRENT.set({}), client_settings._OF_FOLDER.set(False)
    yield
    CURRENT.reset(before[0])
    client_settings._OF_FOLDER.reset(before[1])


@pytest.fixture
def made(tmp_path: Path) -> Description:
    folder = tmp_path / "cluster"
    found = Description.new(folder, {1: Ports(1, 2, 3), 2: Ports(4, 5, 6)}, None, (), secure=True)
    found.check(())
    found.create()
    return found


def test_every_file_is_the_owners_alone_and_has_no_password_but_one(made: Description) -> None:
    password = CURRENT.get()["sasl.password"]
    assert len(password) == 48
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    for file in made.folder.iterdir():
        if file.is_file():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
            assert (password in file.read_text()) is (file.name == "client.properties"), file


def test_nodes_take_their_files_and_every_port_is_protected(made: Description) -> None:
    for node in made.nodes.values():
        config = load(str(node.config), {}, [])
        (listener,) = config.listeners
        assert (listener.protocol, listener.port, listener.nodes_ca) == (
            "SASL_SSL", node.ports.kafka, str(made.security.authority)
        )  # fmt: skip
        assert config.admin.logins
        assert config.mesh.tls is not None
        assert config.admin.tls is not None
        load_tls(config.mesh.tls)
        load_tls(config.admin.tls)
        assert config.authorization.super_users == ("User:admin",)
        user = config.cluster.first_user
        assert user is not None
        assert is_password(ScramMechanism.SHA_256, user.credential, CURRENT.get()["sasl.password"])
        assert not is_password(ScramMechanism.SHA_256, user.credential, "another")
        assert node.admin == f"https://127.0.0.1:{node.ports.admin}"


def test_certificates_stand_the_strictest_look(made: Description) -> None:
    client = ssl.create_default_context(cafile=str(made.security.authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.folder / "node-1.pem", made.folder / "node-1.key")
    for name in ("localhost", "127.0.0.1", "::1"):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            client.wrap_bio(to_client, to_server, server_hostname=name),
            server.wrap_bio(to_server, to_client, server_side=True),
        ]
        for _ in range(4):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        assert ends[0].version() == "TLSv1.3"


def test_what_is_loaded_again_goes_on_with_the_same_login(made: Description) -> None:
    before = dict(CURRENT.get())
    CURRENT.set({})
    again = Description.load(made.folder)
    assert again is not None
    assert again.secure
    assert CURRENT.get() == before
    assert "bootstrap.servers" not in before
    text = made.nodes[1].config.read_text()
    again.configure(("log.level=debug",))
    assert load(str(made.nodes[1].config), {}, []).log.level == "debug"
    assert made.nodes[1].config.read_text().splitlines()[: len(text.splitlines())] == text.splitlines()


def test_a_certificate_that_ends_soon_is_made_again_and_no_other(
    made: Description, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made.folder / "node-1.pem"
    first, other = place.read_bytes(), (made.folder / "node-2.pem").read_bytes()
    assert made.renew() == []
    assert place.read_bytes() == first
    monkeypatch.setattr(local_security, "_NODE_DAYS", 10)
    place.unlink()
    assert made.renew() == [1]
    monkeypatch.undo()
    assert made.renew() == [1], "it ends in 10 days"
    end = x509.load_pem_x509_certificate(place.read_bytes()).not_valid_after_utc
    assert end - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=700)
    assert (made.folder / "node-2.pem").read_bytes() == other
    place.unlink()
    (made.folder / "authority.key").unlink()
    with pytest.raises(CommandFailed, match=r"node 1 needs a new certificate.*bring .*authority.key back"):
        made.renew()


def test_a_certificate_that_an_interrupted_up_left_is_made_again(made: Description) -> None:
    place, key = made.folder / "node-1.pem", made.folder / "node-1.key"
    key.unlink()
    assert made.renew() == [1]
    for damage in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        place.write_bytes(damage)
        assert made.renew() == [1]
    made.security.make_authority()
    assert made.renew() == [1, 2], "another authority signed them"
    assert made.renew() == []
    load_tls(load(str(made.nodes[1].config), {}, []).mesh.tls)  # type: ignore[arg-type]
    place.unlink()
    place.mkdir()
    with pytest.raises(CommandFailed, match=r"node-1.pem cannot be read \(Is a directory\)"):
        made.renew()


def test_a_file_that_the_user_named_is_not_replaced(made: Description) -> None:
    client_settings._OF_FOLDER.set(False)
    CURRENT.set({"sasl.username": "alice"})
    assert Description.load(made.folder) is not None
    assert CURRENT.get() == {"sasl.username": "alice"}


def test_a_folder_of_an_earlier_format_is_read(tmp_path: Path) -> None:
    plain = Description.new(tmp_path, {1: Ports(1, 2, 3)}, None, ())
    plain.create()
    path = tmp_path / "cluster.json"
    path.write_text(path.read_text().replace('"format": 3', '"format": 2').replace('"secure": false,', ""))
    found = Description.load(tmp_path)
    assert found is not None
    assert not found.secure
    assert found.nodes[1].admin == "127.0.0.1:2"
    assert CURRENT.get() == {}


def test_a_port_of_another_authority_is_told_with_a_cure(made: Description, tmp_path: Path) -> None:
    theirs = Authority(tmp_path, "stranger").issue("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*theirs)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            sock, _ = listening.accept()
            with sock, contextlib.suppress(OSError):
                server.wrap_socket(sock, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(
            Unreachable, match=r"its certificate is not accepted: .*ssl.ca.location in --config FILE"
        ):
            AdminClient(f"https://127.0.0.1:{listening.getsockname()[1]}").request("GET", "/health")
        thread.join()


@pytest.mark.parametrize(
    "text", ["admin", "admin:SCRAM-SHA-512$4096:AA==$BB:CC", "a:SCRAM-SHA-256$4096:AA==$short=:short=", ""]
)
def test_a_first_user_that_cannot_be_is_told_without_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not like NAME:SCRAM-SHA-256\$4096|empty"):
        first_user(text)


@pytest.mark.parametrize(
    ("name", "iterations", "salt", "told"),
    [
        ("a" * 256, "4096", "AAAA", "name has 256"), ("a", "20000", "AAAA", "iterations are not 4096"),
        ("a", "0000", "AAAA", "iterations are not 4096"), ("a", "٤٠٩٦", "AAAA", "is not like"),
        ("a", "4096", "ÄÄÄÄ", "is not like"), ("a", "4096", "AAAA" * 342, "salt has 1026"),
        ("a", "4096", "====", "salt has 0|padding"),
    ],
)  # fmt: skip
def test_a_first_user_that_the_controller_would_refuse(
    name: str, iterations: str, salt: str, told: str
) -> None:
    key = "A" * 43 + "="
    with pytest.raises(ValueError, match=told):
        first_user(f"{name}:SCRAM-SHA-256${iterations}:{salt}${key}:{key}")


def test_a_first_user_reads_as_it_was_written(made: Description) -> None:
    user = load(str(made.nodes[1].config), dict(os.environ), []).cluster.first_user
    assert first_user(str(user)) == user
