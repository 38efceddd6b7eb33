"""The storage of a clone: beside that of its source, and never the source."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.cluster import local_restore
from strandline.cluster.commands import restore as command
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_files import Description
from strandline.cluster.local_restore import beside, clone
from strandline.cluster.ports import Ports, usual_ports
from strandline.node.objectstore.storage_owner import Owner


def play_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the storage of any clone be that of cluster green, with one node."""

    async def found(store: object, number: int | None, *, leased: bool) -> object:
        assert leased
        return SimpleNamespace(owner=Owner("green", "first"))

    monkeypatch.setattr(local_restore, "with_store", lambda storage, options, run: asyncio.run(run(None)))
    monkeypatch.setattr(local_restore, "described", lambda stored: {"cluster": "green", "nodes": [1]})
    monkeypatch.setattr("strandline.node.restore.stored_point.read_point", found)


def test_it_lies_beside_the_source() -> None:
    assert beside("s3://bucket/a/blue/", "trial") == "s3://bucket/a/trial"
    assert beside("/srv/blue", "trial").endswith("/srv/trial")
    for bucket in ("s3://bucket", "s3://bucket/"):
        with pytest.raises(CommandFailed, match="has no prefix"):
            beside(bucket, "trial")


@pytest.mark.parametrize("source", ["s3://bucket/blue", "/srv/blue/"])
def test_the_place_of_the_source_is_refused(source: str) -> None:
    with pytest.raises(CommandFailed, match="--as blue is the source itself"):
        beside(source, "blue")


def test_the_name_of_the_source_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_source(monkeypatch)
    with pytest.raises(CommandFailed, match="the source is cluster 'green' itself"):
        clone(str(tmp_path / "blue"), {}, "green", None, lambda _: None, folder=tmp_path / "cluster")
    assert not (tmp_path / "green").exists()


def test_a_folder_that_has_another_cluster_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    """As that of the source, which `--cluster` names where it is left out."""
    folder = tmp_path / "cluster"
    Description.new(folder, usual_ports((1,)), str(tmp_path / "blue"), ()).create()
    with pytest.raises(CommandFailed, match="a clone needs a folder of its own; name another with --cluster"):
        clone(str(tmp_path / "blue"), {}, "trial", None, lambda _: None, folder=folder)
    assert not (tmp_path / "trial").exists()


def test_ports_that_are_in_use_are_told_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of the source, which runs."""
    play_source(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def ports(nodes: Sequence[int]) -> dict[int, Ports]:
            return dict.fromkeys(nodes, Ports(port, port, port))

        with pytest.raises(CommandFailed, match=f"port {port} .* is in use by .*--free-ports"):
            clone(
                str(tmp_path / "blue"),
                {},
                "trial",
                None,
                lambda _: None,
                folder=tmp_path / "cluster",
                choose_ports=ports,
            )
    assert not any(tmp_path.iterdir())


def test_a_clone_whose_restore_broke_off_is_not_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cluster"
    made = Description.new(folder, usual_ports((1,)), str(tmp_path / "trial"), ())
    made.create()
    opened: list[str] = []
    monkeypatch.setattr(local_restore, "with_store", lambda storage, *_: opened.append(storage))
    clone(str(tmp_path / "blue"), {}, "trial", None, lambda _: None, folder=folder)
    assert opened == []
    made.ready = True
    made.save()
    clone(str(tmp_path / "blue"), {}, "trial", None, lambda _: None, folder=folder)
    assert opened == [str(tmp_path / "blue")], (
        "one that was whole once is refused by what lies in its storage"
    )


@pytest.mark.parametrize("name", [None, "trial"])
def test_a_dry_run_shows_the_point_that_would_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Clones are made of points with leases alone."""
    asked: list[dict[str, Any]] = []

    def look(*_: object, **options: Any) -> dict[str, Any]:
        asked.append(options)
        return {}

    monkeypatch.setattr(command, "look", look)
    monkeypatch.setattr(command, "_lines", lambda *_: [])
    command.restore(str(tmp_path), cluster=tmp_path / "cluster", name=name, dry_run=True, as_json=True)
    assert asked == [{"leased": name is not None}]
