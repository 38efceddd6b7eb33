"""Which ports, whose ports, which cluster."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local_files import Description
from strandline.cluster.ports import Ports, free_ports, holder, is_free, usual_ports
from strandline.cluster.target import target


def test_the_usual_ports() -> None:
    assert usual_ports([1, 2]) == {1: Ports(9092, 9644, 7101), 2: Ports(9093, 9645, 7102)}


def test_free_ports_are_free_and_distinct() -> None:
    found = free_ports([1, 2, 3])
    ports = [port for each in found.values() for port in (each.kafka, each.admin, each.mesh)]
    assert len(set(ports)) == 9
    assert all(is_free(port) for port in ports)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_listens_is_named(family: socket.AddressFamily) -> None:
    with socket.create_server(("", 0), family=family) as server:
        port = server.getsockname()[1]
        assert not is_free(port) or family == socket.AF_INET6
        assert holder(port).startswith(f"pid {os.getpid()} (")
    assert holder(port) == "another process"


def test_the_holder_is_found_behind_a_descriptor_that_goes_while_they_are_listed() -> None:
    """The listing itself has the lowest free descriptor, and that is gone when it is looked at."""
    lower = os.open(os.devnull, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        os.close(lower)
        assert holder(taken.getsockname()[1]).startswith(f"pid {os.getpid()} (")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = Description.new(tmp_path / "strandline-cluster", {1: Ports(1, 2, 3), 2: Ports(4, 5, 6)}, None, ())
    made.create()
    return made.folder


def test_the_folder_that_is_named(folder: Path) -> None:
    found = target(folder=folder)
    assert found.bootstrap == "127.0.0.1:1,127.0.0.1:4"
    assert found.admin == ("127.0.0.1:2", "127.0.0.1:5")


def test_the_usual_folder_then_the_usual_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert target().bootstrap == "127.0.0.1:1,127.0.0.1:4"
    monkeypatch.chdir(folder)
    assert target().bootstrap == "127.0.0.1:9092"
    assert target().admin == ("127.0.0.1:9644",)


def test_an_address_goes_before_the_usual_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert target(bootstrap="there:9").bootstrap == "there:9"
    assert target(admin="there:9, here:8").admin == ("there:9", "here:8")


def test_contradictions_and_empty_folders_are_mistakes(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(CommandFailed, match="--cluster already says"):
        target(bootstrap="there:9", folder=folder)
    with pytest.raises(CommandFailed, match=r"there is no cluster\.json in"):
        target(folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ("foo", "there is no port in 'foo'; write foo:9092"),
        ("a:1, b", "there is no port in 'b'; write b:9092"),
        ("::1", "there is no port in '::1'; write [::1]:9092"),
        ("[::1]", "write [::1]:9092"),
        ("", "there is no port in ''; write HOST:9092"),
        ("foo:", "'foo:' is not host:port"),
        ("foo:99999", "'foo:99999' is not host:port"),
        (":9092", "':9092' is not host:port"),
        ("foo:x", "'foo:x' is not host:port"),
    ],
)
def test_an_address_without_a_port_is_a_mistake_that_is_named(given: str, cure: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        target(bootstrap=given)
    assert cure in str(caught.value)
    assert caught.value.status == MISUSED


def test_a_copied_url_is_an_address(tmp_path: Path) -> None:
    assert target(admin="http://there:9644/, http://[::1]:9645").admin == ("there:9644", "[::1]:9645")


@pytest.mark.parametrize(
    "word", ['{"level": "ERROR", "message": "the disk is full"}', "strandline: the disk is full"]
)
def test_the_last_words_of_a_node(folder: Path, word: str) -> None:
    node = target(folder=folder).local
    assert node is not None
    node.nodes[1].log.write_text(f"before\n{word}\n\n")
    assert node.nodes[1].last_words() == "the disk is full"
