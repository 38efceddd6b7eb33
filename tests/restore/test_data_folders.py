"""Data folders that a restore may remove: its own, as long as no node started with them."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_files import RESTORING, Description
from strandline.cluster.local_restore import _check_described, _check_fits, _check_place, look
from strandline.cluster.ports import Ports, usual_ports
from strandline.node.raft.data_folder import Folder
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.folder_file import UNSTARTED
from strandline.node.restore.data_folders import begin_data_folder, removable


def start(folder: Path) -> None:
    """As a node does, before it promises anything."""
    Folder.open(RealDisk(), str(folder), 1, "harbour", random.Random(1), lambda job, then: None, logged=False)


def test_a_folder_of_a_restore_can_be_made_again_until_its_node_starts(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for _ in range(2):
        begin_data_folder(folder)
        assert [each.name for each in folder.iterdir()] == [UNSTARTED]
        (folder / "wal").mkdir()
        (folder / "wal" / "segment").write_bytes(b"entries")
        (folder / "identity").write_bytes(b"")
    (folder / "identity").unlink()
    start(folder)
    assert not removable(folder)
    with pytest.raises(FileExistsError, match="holds a node's data"):
        begin_data_folder(folder)
    assert (folder / "wal" / "segment").read_bytes() == b"entries"


def test_a_repeat_refuses_data_folders_that_were_moved_back(tmp_path: Path) -> None:
    """They may be the only copies: the restore that broke off had said to go on with them."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    found = Description.new(folder, usual_ports([1, 2, 3]), str(tmp_path / "bucket"), [], secure=False)
    (folder / RESTORING).write_text("point 1\n")
    for node in found.nodes.values():
        node.data.parent.mkdir(parents=True, exist_ok=True)
        begin_data_folder(node.data)
    _check_described(found, None)
    back = found.nodes[2].data
    (back / UNSTARTED).unlink()
    (back / "wal").mkdir()
    with pytest.raises(CommandFailed) as refusal:
        _check_described(found, None)
    assert refusal.value.cause == f"data folders are still there: {back}"
    assert f"delete {folder / RESTORING}, and start the cluster" in refusal.value.cure
    assert "move them away" in refusal.value.cure


def test_a_folder_whose_cluster_has_another_storage_is_refused(tmp_path: Path) -> None:
    """The storage that was named would not be what is restored."""
    found = Description.new(tmp_path / "cluster", usual_ports((1,)), "/srv/own", ())
    for same in (None, "/srv/own"):
        _check_described(found, same)
    for other in ("/srv/other", "own", "s3://bucket/own"):
        with pytest.raises(CommandFailed, match="has its objects in /srv/own; leave --storage out"):
            _check_described(found, other)


@pytest.mark.parametrize("new", [False, True])
def test_ports_that_are_in_use_are_told_before_anything_is_done(tmp_path: Path, new: bool) -> None:
    """A new folder keeps its ports, so that they could not be changed by a repeat."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = Description.new(tmp_path / "cluster", {1: Ports(port, port, port)}, None, ())
        with pytest.raises(CommandFailed, match=f"port {port} .* is in use by .*--free-ports"):
            _check_place(found, new=new)
    _check_place(found, new=new)


def test_a_folder_that_lacks_a_node_of_the_point_is_told_with_what_to_write(tmp_path: Path) -> None:
    """As one of which a node was added, or removed, from elsewhere."""
    found = Description.new(tmp_path / "cluster", usual_ports((1, 2)), "/srv/own", ())
    _check_fits(found, {"cluster": found.cluster, "nodes": [1, 2]})
    with pytest.raises(CommandFailed, match="another folder: --storage /srv/own --cluster FOLDER"):
        _check_fits(found, {"cluster": found.cluster, "nodes": [1, 2, 3]})


def test_a_folder_without_objects_of_a_cluster_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo").write_text("x")
    lacking = {
        "nowhere": "does not exist",
        "file": "is no folder",
        "empty": "is empty",
        "foreign": "has no objects of a cluster",
    }
    for name, why in lacking.items():
        with pytest.raises(
            CommandFailed, match=f"{name} {why}: there is nothing to restore; name the folder"
        ):
            look(str(tmp_path / name), {}, None)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["empty", "file", "foreign", "photo"]
