"""What every ObjectStore must do, checked the same way on each of them."""

from __future__ import annotations

import pytest

from strandline.node.objectstore.store import NotDone, ObjectNotFound, ObjectStore, RangeNotFound, Wanted


async def check_contract(store: ObjectStore) -> None:
    """Every promise of the protocol on an empty store; leaves it empty."""
    await check_puts_and_reads(store)
    await check_ranges(store)
    await check_filling(store)
    await check_listing(store)
    await check_deletion(store)
    await check_bad_calls(store)


async def check_puts_and_reads(store: ObjectStore) -> None:
    await store.put("l0/0001/a", [b"", b"one", memoryview(b"-two"), bytearray(b"-three")])
    assert bytes(await store.get("l0/0001/a")) == b"one-two-three"
    assert await store.size("l0/0001/a") == 13
    await store.put("l0/0001/a", [b"replaced"])
    assert bytes(await store.get("l0/0001/a")) == b"replaced"
    large = [bytes([n]) * 30_000 for n in range(100)] + [b"x" * 100_000, b"end"]
    await store.put("large", large)
    assert bytes(await store.get("large")) == b"".join(large)
    with pytest.raises(ObjectNotFound, match="get none: there is no such object"):
        await store.get("none")
    with pytest.raises(ObjectNotFound):
        await store.get("l0/0001")
    with pytest.raises(ObjectNotFound):
        await store.size("l0/0001/b")
    await store.delete_many(["l0/0001/a", "large"])


async def check_ranges(store: ObjectStore) -> None:
    await store.put("ranged", [bytes(range(200))])
    assert bytes(await store.get_range("ranged", 0, 200)) == bytes(range(200))
    assert bytes(await store.get_range("ranged", 17, 3)) == bytes([17, 18, 19])
    assert bytes(await store.get_range("ranged", 199, 1)) == bytes([199])
    for start, length in ((199, 2), (200, 1), (5000, 10)):
        with pytest.raises(RangeNotFound):
            await store.get_range("ranged", start, length)
    with pytest.raises(ObjectNotFound):
        await store.get_range("none", 0, 1)
    await store.delete_many(["ranged"])


async def check_filling(store: ObjectStore) -> None:
    """Memory is filled or said not to be; a store without files leaves all of it to the ranges."""
    await store.put("one", [bytes(range(100))])
    await store.put("two", [bytes(range(100, 200))])
    memory = [memoryview(bytearray(10)) for _ in range(6)]
    wanted = [
        Wanted("one", [(5, memory[0]), (90, memory[1])]),
        Wanted("none", [(0, memory[2])]),
        Wanted("two", [(91, memory[3]), (0, memory[4])]),
        Wanted("two", [(90, memory[5])]),
    ]
    filled = await store.fill(wanted)
    assert filled == ([True, False, False, True] if store.has_files else [False] * 4)
    if store.has_files:
        assert [bytes(one) for one in (memory[0], memory[1], memory[5])] == [
            bytes(range(5, 15)),
            bytes(range(90, 100)),
            bytes(range(190, 200)),
        ]
    await store.delete_many(["one", "two"])


async def check_listing(store: ObjectStore) -> None:
    keys = ["a/b", "a-b/c", "a.b", "l0/0001/1/x", "l0/0001/10/x", "l0/0001/2/x", "l0/0002/1/x", "l0/00010/x"]
    for key in keys:
        await store.put(key, [b"."])
    assert await store.list("", "", 100) == sorted(keys)
    shard = [key for key in sorted(keys) if key.startswith("l0/0001/")]
    assert await store.list("l0/0001/", "", 100) == shard
    assert await store.list("l0/0001/", "", 2) == shard[:2]
    assert await store.list("l0/0001/", shard[0], 2) == shard[1:3]
    assert await store.list("l0/0001/", "l0/0001/1/y", 1) == [shard[1]]
    assert await store.list("l0/0001/", shard[-1], 1) == []
    assert await store.list("none/", "", 1) == []
    await store.delete_many(keys)
    assert await store.list("", "", 100) == []


async def check_deletion(store: ObjectStore) -> None:
    await store.put("l0/a", [b"a"])
    await store.put("l0/b", [b"b"])
    await store.put("l0/c", [b"c"])
    await store.delete_many(["l0/missing", "l0/a", "l0/c", "no/such/folder"])
    assert await store.list("", "", 10) == ["l0/b"]
    await store.delete_many([])
    await store.delete_many(["l0/b", "l0/b"])
    assert await store.list("", "", 10) == []
    await store.put("l0/a", [b"again"])
    assert bytes(await store.get("l0/a")) == b"again"
    await store.delete_many(["l0/a"])


async def check_bad_calls(store: ObjectStore) -> None:
    for key in ("", "/a", "a/", "a//b", "../a", "a/../b", ".partial/x", "a b", "ä", "a" * 513, "a\n", "-a"):
        with pytest.raises(ValueError, match="cannot name an object"):
            await store.put(key, [b"x"])
        with pytest.raises(ValueError, match="cannot name an object"):
            await store.get(key)
        with pytest.raises(ValueError, match="cannot name an object"):
            await store.delete_many([key])
    with pytest.raises(ValueError, match="must end in /"):
        await store.list("a", "", 1)
    with pytest.raises(ValueError, match="a listing gives"):
        await store.list("", "", 0)
    with pytest.raises(ValueError, match="no range"):
        await store.get_range("a", 0, 0)
    with pytest.raises(ValueError, match="at a time"):
        await store.delete_many(["a"] * 1001)
    with pytest.raises(NotDone, match="this store takes up to") as raised:
        await store.put("a", [bytes(store.max_object_bytes), b"x"])
    assert not raised.value.retriable
    assert await store.list("", "", 10) == []
