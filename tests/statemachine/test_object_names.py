"""Level-zero names: epoch order within a shard, and nothing is read that was not written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.statemachine.object_names import object_id, object_name, parse_object_name, shard_prefix

SHARDS = st.integers(0, 0xFFFF)
NODES = st.integers(1, 0xFFFF)
EPOCHS = st.integers(0, 2**63 - 1)
UNIQUE = st.binary(min_size=16, max_size=16)


def test_name_tells_shard_epoch_node_and_identity() -> None:
    name = object_name(42, object_id(shard=10, node=3, unique=bytes(range(16))))
    assert name == "l0/000a/00000000000000000042/3-000102030405060708090a0b0c0d0e0f"
    assert name.startswith(shard_prefix(10))


@settings(max_examples=100, deadline=None)
@given(SHARDS, NODES, EPOCHS, UNIQUE)
def test_every_name_reads_back(shard: int, node: int, epoch: int, unique: bytes) -> None:
    identity = object_id(shard, node, unique)
    assert parse_object_name(object_name(epoch, identity)) == (epoch, identity)


@settings(max_examples=100, deadline=None)
@given(SHARDS, st.tuples(NODES, EPOCHS, UNIQUE), st.tuples(NODES, EPOCHS, UNIQUE))
def test_names_of_a_shard_sort_by_epoch(
    shard: int, one: tuple[int, int, bytes], two: tuple[int, int, bytes]
) -> None:
    names = [object_name(epoch, object_id(shard, node, unique)) for node, epoch, unique in (one, two)]
    if one[1] != two[1]:
        assert (names[0] < names[1]) == (one[1] < two[1])


@pytest.mark.parametrize(
    "name",
    [
        "",
        "l1/000a/00000000000000000042/3-000102030405060708090a0b0c0d0e0f",
        "l0/000a/42/3-000102030405060708090a0b0c0d0e0f",
        "l0/000A/00000000000000000042/3-000102030405060708090a0b0c0d0e0f",
        "l0/000a/00000000000000000042/03-000102030405060708090a0b0c0d0e0f",
        "l0/000a/00000000000000000042/70000-000102030405060708090a0b0c0d0e0f",
        "l0/000a/00000000000000000042/3-000102030405060708090a0b0c0d0e0f.tmp",
        "l0/000a/00000000000000000042/3-000102030405060708090a0b0c0d0e0f\n",
    ],
)
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        parse_object_name(name)


def test_an_identity_needs_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="16 unique bytes"):
        object_id(0, 1, b"short")
