"""The storage of a clone: beside that of its source, and never the source."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.cluster import local_restore
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_restore import beside, clone
from strandline.node.objectstore.storage_owner import Owner


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
    async def found(store: object, number: int | None, *, leased: bool) -> object:
        assert leased
        return SimpleNamespace(owner=Owner("green", "first"))

    monkeypatch.setattr(local_restore, "_with_store", lambda storage, options, run: asyncio.run(run(None)))
    monkeypatch.setattr("strandline.node.restore.stored_point.read_point", found)
    with pytest.raises(CommandFailed, match="the source is cluster 'green' itself"):
        clone(str(tmp_path / "blue"), {}, "green", None, lambda _: None)
    assert not (tmp_path / "green").exists()
