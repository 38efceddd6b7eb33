"""Unfinished files lie in several folders, in turns, and are swept from all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.node.objectstore.unfinished_files import (
    APART,
    FILES_EACH,
    FOLDERS,
    PARTIAL,
    UnfinishedFiles,
)
from strandline.node.raft.block_groups import TOP_OF_FOLDERS, flags_of
from strandline.node.raft.disk import RealDisk


@pytest.fixture
def files(tmp_path: Path) -> UnfinishedFiles:
    (tmp_path / PARTIAL / "node-1").mkdir(parents=True)
    made = UnfinishedFiles(RealDisk(), str(tmp_path), "node-1")
    made.open()
    return made


def make(files: UnfinishedFiles, number: int) -> Path:
    path = Path(files.path(number))
    path.write_bytes(b"unfinished")
    return path


def test_folders_take_turns(files: UnfinishedFiles) -> None:
    first, second = make(files, 0), make(files, FILES_EACH)
    assert make(files, FILES_EACH - 1).parent == first.parent != second.parent
    turns = [make(files, number * FILES_EACH).parent for number in range(2, 2 * FOLDERS)]
    assert len({first.parent, second.parent, *turns}) == FOLDERS
    assert make(files, FOLDERS * FILES_EACH + 1).parent == first.parent
    assert all(folder.parent == Path(files.folder + APART) for folder in turns)


def test_what_was_left_is_swept_from_every_folder(files: UnfinishedFiles) -> None:
    left = [make(files, number * FILES_EACH) for number in range(5)]
    (Path(files.folder) / "17").write_bytes(b"of an earlier release")
    (Path(files.folder) / "05").mkdir()
    (Path(files.folder) / "05" / "1280").write_bytes(b"of a build that had folders here")
    files.open()
    assert not [path for path in Path(files.folder).parent.rglob("*") if path.is_file()]
    assert make(files, 1).parent == left[0].parent


def test_an_earlier_release_finds_nothing_that_it_cannot_remove(files: UnfinishedFiles) -> None:
    """It removes all names in the folder as those of files, and does not start where one is a folder."""
    for number in range(3):
        make(files, number * FILES_EACH)
    files.open()
    for name in os.listdir(files.folder):
        os.unlink(os.path.join(files.folder, name))


def test_a_folder_that_went_away_is_made_again(files: UnfinishedFiles) -> None:
    path = make(files, 0)
    path.unlink()
    path.parent.rmdir()
    again = files.path(1)
    with pytest.raises(FileNotFoundError):
        os.open(again, os.O_RDWR | os.O_CREAT)
    files.remove(again)
    make(files, 2)


def test_a_store_that_is_gone_is_not_begun_anew(files: UnfinishedFiles, tmp_path: Path) -> None:
    (tmp_path / PARTIAL).rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        files.path(0)
    assert not (tmp_path / PARTIAL).exists()


def test_the_folders_are_to_lie_apart(files: UnfinishedFiles, tmp_path: Path) -> None:
    try:
        flags_of(str(tmp_path))
    except OSError:
        pytest.skip("this file system has no flags")
    if flags_of(files.folder + APART) & TOP_OF_FOLDERS == 0 and not is_ext4(tmp_path):
        pytest.skip("this file system does not know groups of blocks")
    assert flags_of(files.folder + APART) & TOP_OF_FOLDERS
    assert flags_of(str(tmp_path / PARTIAL)) & TOP_OF_FOLDERS
    assert not flags_of(str(tmp_path)) & TOP_OF_FOLDERS


def is_ext4(path: Path) -> bool:
    """Whether the mount that a path lies in is ext4."""
    found = ""
    longest = -1
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if path.is_relative_to(place) and len(place) > longest:
            longest, found = len(place), kind
    return found == "ext4"
