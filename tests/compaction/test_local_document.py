"""Local documents: what a replica tells of its own log beside a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from strandline.node.checkpoints.document_rows import DocumentRows
from strandline.node.compaction.shared_rows import shared_rows
from strandline.snapshot.local_document import (
    LocalDocument,
    LocalDocumentDamaged,
    bound,
    decode_local,
    key_hash,
)
from strandline.snapshot.local_rows import LOCAL_ROWS, rows_of
from tests.compaction.logs import Plan, log_of


def test_a_document_is_read_back_and_damage_is_told() -> None:
    log = log_of([Plan(((b"a", b"1", 0), (None, b"no key", 0), (b"b", None, 0))), Plan(())])
    document = LocalDocument("harbour", 7, 30, 5, 1, 2, 0, 0, 4, 0, shared_rows(b"".join(log), 0))
    data = document.encode()
    assert decode_local(data) == document
    assert rows_of(document).tolist() == [(key_hash(b"a"), 0, False), (key_hash(b"b"), 2, True)]
    for at in (0, 20, 60, len(data) - 1):
        wrong = bytearray(data)
        wrong[at] ^= 1
        with pytest.raises(LocalDocumentDamaged):
            decode_local(bytes(wrong))
    with pytest.raises(LocalDocumentDamaged, match="magic"):
        decode_local(data[:30])
    for changed in ({"rows": document.rows[:-1]}, {"floor": -1}, {"share_bits": 65}, {"cluster": 3}):
        with pytest.raises(LocalDocumentDamaged, match="format"):
            decode_local(document._replace(**changed).encode())


def test_a_share_that_has_too_many_rows_is_halved_and_every_replica_has_the_same_keys() -> None:
    plans = [Plan(tuple((b"key %d" % n, b"", 0) for n in range(at, at + 50))) for at in (0, 50)]
    every = {key_hash(b"key %d" % number) for number in range(100)}
    for most, fewest_bits in ((100, 0), (99, 1), (20, 3)):
        shared = DocumentRows(0, most)
        for plan in plans:
            shared.add(shared_rows(log_of([plan])[0], shared.share_bits))
        found = {row[0] for row in np.frombuffer(shared.packed(), LOCAL_ROWS).tolist()}
        assert len(found) <= most
        assert found == {key for key in every if key < bound(shared.share_bits)}
        assert shared.share_bits >= fewest_bits


def test_a_share_is_half_of_the_one_of_a_bit_less() -> None:
    keys = [key_hash(b"%d" % number) for number in range(4000)]
    counts = [sum(key < bound(bits) for key in keys) for bits in (0, 1, 6)]
    assert counts[0] == 4000
    assert 1800 < counts[1] < 2200
    assert 30 < counts[2] < 100
