"""Memory that the windows of a task are read into, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.spark import fetch
from strandline.snapshot.spark import plan as planning
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.pieces import PIECE, PieceKind, Slice
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import FolderStorage, ObjectMissing
from strandline.statemachine.object_names import OBJECT_ID_BYTES, object_name
from tests.spark.planned import TOPICS
from tests.spark.stored_cluster import build_cluster

SECONDS = 30.0


class Rooms(FolderStorage):
    """A folder that keeps what it was given to fill."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.rooms: list[Any] = []

    def read_into(self, key: str, start: int, room: memoryview) -> None:
        self.rooms.append(room.obj)
        super().read_into(key, start, room)


def test_what_was_decoded_stays_as_it_is_when_its_memory_has_another_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = build_cluster(tmp_path / "objects", batches_a_round=4)
    monkeypatch.setattr(planning, "WINDOW_BYTES", 600)
    monkeypatch.setattr(planning, "TASKS_PER_CORE", 1)
    storage, schema = Rooms(cluster.url), arrow_schema(SCHEMA)
    (windows,) = planning.plan(storage, parse({"url": storage.url, "topic": TOPICS}), 1)
    found = list(fetch.read_windows(storage, windows, schema))
    rooms = len({id(room) for room in storage.rooms})
    assert 2 <= rooms <= 6 < len(windows) / 2, "memory grows with windows that are larger than all before"
    storage.rooms.clear()
    monkeypatch.setattr(fetch, "AHEAD", len(windows))
    expected = list(fetch.read_windows(storage, windows, schema))
    assert not storage.rooms
    assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in expected]


class Slow(FolderStorage):
    """A folder without its first object, whose second one takes until it may come."""

    def __init__(self, url: str, first: str) -> None:
        super().__init__(url)
        self.first = first
        self.may_come = threading.Event()

    def read_into(self, key: str, start: int, room: memoryview) -> None:
        if key == self.first:
            raise ObjectMissing(f"there is no object {key}")
        assert self.may_come.wait(SECONDS)
        room[:] = b"2" * len(room)


def test_memory_is_not_released_while_a_get_that_is_not_waited_for_fills_it(tmp_path: Path) -> None:
    """Records that moved are read elsewhere, those behind them with them."""
    ids = [bytes([number]) * OBJECT_ID_BYTES for number in (1, 2)]
    rows = [PIECE.pack(PieceKind.BATCH, n, n + 1, 1, 0, 0, 100, 1, 0, 1, one) for n, one in enumerate(ids)]
    piece = Slice("orders", bytes(16), 0, "document", 0, 2, b"".join(rows), {}, b"")
    storage, memory = Slow(str(tmp_path), object_name(1, ids[0])), fetch._Memory()

    def moved(piece: Slice, base: int, end: int, error: fetch.ObjectGone) -> Sequence[Slice]:
        assert (base, end) == (0, 2)
        return []

    with ThreadPoolExecutor(4) as pool:
        window = fetch._Window(storage, pool, [piece], moved, memory=memory)
        assert list(window.batches()) == []
        released = pool.submit(window.release)
        assert not released.done()
        assert memory._free is None
        storage.may_come.set()
        released.result(SECONDS)
    assert memory.take(200) == b"\0" * 100 + b"2" * 100
