"""`strandline cluster restore` that is refused: neither the storage nor the folder has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_restore import restore
from strandline.cluster.ports import usual_ports
from strandline.node.restore import take_over
from tests.formats.unpacking import KEPT_BUCKETS, unpack_bucket

BUCKET = KEPT_BUCKETS / "tail-point-1.tar.xz"


async def none_runs(_: Any) -> list[str]:
    """Something of this machine may listen at the addresses that the kept nodes had."""
    return []


def things(folder: Path) -> list[Path]:
    """All that is there but the places in which a process prepares its puts."""
    return sorted(each for each in folder.rglob("*") if ".partial" not in each.parts)


@pytest.mark.parametrize("folder_is", ["a file", "a folder with a file"])
def test_what_lies_in_the_place_of_a_data_folder_is_found_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_is: str
) -> None:
    monkeypatch.setattr(take_over, "running_nodes", none_runs)
    bucket = unpack_bucket(BUCKET, tmp_path)
    into = tmp_path / "new"
    taken = into / "node-2" / "photo" if folder_is != "a file" else into / "node-2"
    taken.parent.mkdir(parents=True)
    taken.write_text("x")
    before = things(tmp_path)
    told: list[Any] = []
    with pytest.raises(CommandFailed) as refusal:
        restore(
            into,
            storage=str(bucket),
            options={},
            settings=(),
            point=None,
            choose_ports=usual_ports,
            secure=False,
            tell=told.append,
            progress=lambda text: None,
        )
    assert refusal.value.cause == f"{into / 'node-2'} holds something already"
    assert "name another folder with --cluster" in refusal.value.cure
    assert things(tmp_path) == before
    assert not told, "nothing is going to be restored"
