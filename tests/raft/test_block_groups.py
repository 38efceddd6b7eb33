"""A file system is asked to lay folders apart, and nothing is said where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.node.raft.block_groups import TOP_OF_FOLDERS, flags_of, spread_folders


def test_a_folder_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    spread_folders(str(tmp_path / "none"))
    (tmp_path / "file").write_bytes(b"")
    spread_folders(str(tmp_path / "file"))


def test_a_file_system_without_flags_is_passed_over() -> None:
    with pytest.raises(OSError, match="ioctl"):
        flags_of("/proc/self")
    spread_folders("/proc/self")


def test_its_other_flags_stay(tmp_path: Path) -> None:
    try:
        before = flags_of(str(tmp_path))
    except OSError:
        pytest.skip("this file system has no flags")
    spread_folders(str(tmp_path))
    spread_folders(str(tmp_path))
    assert flags_of(str(tmp_path)) & ~TOP_OF_FOLDERS == before
