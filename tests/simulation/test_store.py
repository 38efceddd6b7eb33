"""The simulated object store: every way a request may end does happen, and the seed decides which."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from strandline.node.level_zero.batcher import Batcher, Stored
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.store import NotDone, OutcomeUnknown, StoreError
from strandline.node.refusal import Refusal
from strandline.snapshot.level_zero_format import BadObject, parse
from tests.level_zero.samples import TOPIC, record_batch, run, started
from tests.objectstore.store_contract import check_contract
from tests.simulation.store import SimStore
from tests.simulation.world import SimulationFailed, World


def test_it_keeps_the_contract() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        store.max_object_bytes = 4 * 1024 * 1024
        client = store.client(node)
        run(world, node, check_contract(client))
        with pytest.raises(SimulationFailed, match="overwritten with other bytes"):
            world.check()


def ends(seed: int, fate: str) -> tuple[str, bool, bool]:
    """How one put ends: its error, whether the object is there then, and whether it is an hour later."""
    with World(seed) as world:
        node = started(world)
        store = SimStore(world)
        setattr(store, fate, 1.0)
        task = node.loop.create_task(store.client(node).put("a", [b"x"]))
        world.run(1.0)
        kind = type(task.exception()).__name__ if task.done() else "nothing"
        then = "a" in store.objects
        world.run(3600.0)
        return kind, then, "a" in store.objects


def test_each_fate_is_what_it_says() -> None:
    def all_ends(fate: str) -> set[tuple[str, bool, bool]]:
        return {ends(seed, fate) for seed in range(40)}

    assert all_ends("refused") == {("NotDone", False, False)}
    assert all_ends("broken") == {("OutcomeUnknown", False, False)}
    assert all_ends("lost") == {("OutcomeUnknown", True, True)}
    assert ("OutcomeUnknown", False, True) in all_ends("late")
    assert all(there for _, _, there in all_ends("late"))
    assert all_ends("silent") == {("nothing", False, False), ("nothing", True, True)}


def test_names_are_those_of_the_objects_whoever_changed_them() -> None:
    """Also when as many objects went as came, by hand."""
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        client = store.client(node)
        run(world, node, client.put("l0/b", [b"x"]))
        assert store.keys() == ["l0/b"]
        del store.objects["l0/b"]
        store.objects["l0/a"] = b"y"
        assert store.keys() == ["l0/a"]
        assert run(world, node, client.list("l0/", "", 10)) == ["l0/a"]
        store.objects = {"l0/d": b"", "l0/c": b""}
        assert store.keys("l0/") == ["l0/c", "l0/d"]
        store.objects.clear()
        assert store.keys() == []


def test_a_put_may_fail_and_land_when_nobody_waits_for_it_any_more() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        store.late_puts, store.late_seconds = 1.0, 10_000.0
        client = store.client(node)
        with pytest.raises(OutcomeUnknown):
            run(world, node, client.put("l0/a", [b"x"]))
        run(world, node, client.delete_many(["l0/a"]))
        assert store.keys() == []
        store.land_within(5.0)
        world.run(world.now + 5.0)
        assert store.keys("l0/") == ["l0/a"]


def test_a_listing_that_lags_shows_what_was_there() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        client = store.client(node)
        run(world, node, client.put("l0/a", [b"x"]))
        world.run(world.now + 5.0)
        run(world, node, client.put("l0/b", [b"x"]))
        run(world, node, client.delete_many(["l0/a"]))
        assert store.keys() == ["l0/b"]
        assert "l0/a" in store.deleted
        store.list_lag_seconds = 4.0
        seen = {tuple(run(world, node, client.list("l0/", "", 10))) for _ in range(40)}
        assert ("l0/a",) in seen
        world.run(world.now + 5.0)
        assert run(world, node, client.list("l0/", "", 10)) == ["l0/b"]


def test_deletions_are_heard_of_before_they_happen() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        heard: list[tuple[str, bool]] = []
        steps: list[tuple[int, str, str]] = []
        store.on_delete = lambda name: heard.append((name, name in store.objects))
        store.on_step = lambda node, operation, key, moment: steps.append((node.id, operation, moment))
        run(world, node, store.client(node).put("a", [b"x"]))
        run(world, node, store.client(node).delete_many(["a", "b"]))
        assert heard == [("a", True), ("b", False)]
        assert steps == [
            (node.id, operation, moment)
            for operation in ("put", "delete")
            for moment in ("ended", "answered")
        ]


def test_a_stalled_store_does_nothing_until_it_goes_on() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        store.stall()
        task = node.loop.create_task(store.client(node).put("a", [b"x"]))
        world.run(100.0)
        assert not task.done()
        assert not store.objects
        store.unstall()
        world.run(101.0)
        assert task.done()


def test_a_node_that_is_cut_off_reaches_nothing_and_hears_nothing() -> None:
    with World(1) as world:
        node, other = started(world, 1), started(world, 2)
        store = SimStore(world)
        store.cut(1)
        task = node.loop.create_task(store.client(node).put("a", [b"x"]))
        run(world, other, store.client(other).put("b", [b"x"]))
        store.heal(1)
        world.run(100.0)
        assert not task.done()
        assert store.keys() == ["b"]


def test_a_request_has_its_effect_though_the_node_has_died() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        node.loop.create_task(store.client(node).put("a", [b"x"]))
        world.run(0.0001)
        node.crash("power")
        world.run(1.0)
        assert store.keys() == ["a"]
        world.check()


def test_a_flipped_bit_is_found_by_whoever_reads() -> None:
    with World(1) as world:
        store = SimStore(world)
        store.put("a", b"\0" * 100)
        store.flip_bit("a", 50)
        with pytest.raises(BadObject):
            parse("a", store.objects["a"])
        assert sum(store.objects["a"]) > 0


def weather(seed: int) -> tuple[str, Counter[str], int]:
    """A batcher with retries on a bad store; what was called stored must be there, whole."""
    with World(seed) as world:
        node = started(world)
        sim = SimStore(world)
        sim.refused = sim.broken = sim.lost = sim.late = sim.silent = 0.12
        policy = RetryPolicy(attempts=4, attempt_seconds=0.5, total_seconds=3.0, budget=1000)
        store = RetryingStore(sim.client(node), policy, loop=node.loop, rng=node.rng("retries"))
        config = BatcherConfig(target_bytes=2000, max_object_bytes=4000, max_staged_bytes=8000)
        batcher = Batcher(
            store, config, loop=node.loop, rng=random.Random(seed), node=1, shard=0, epoch=lambda: 1
        )
        chance = world.rng("arrivals")
        staged = []
        for number in range(60):
            batch = record_batch(bytes(chance.randrange(800)) + b"%d" % number)
            staged.append((batch, batcher.stage(TOPIC, number % 3, batch)))
            world.run(world.now + chance.random() * 0.05)
        world.run(world.now + 120.0)
        ended: Counter[str] = Counter()
        for batch, future in staged:
            result = future.result()
            ended[result.reason.name if isinstance(result, Refusal) else "Stored"] += 1
            if isinstance(result, Stored):
                name = f"l0/0000/{result.epoch:020d}/1-{result.object_id[4:].hex()}"
                data = sim.objects[name]
                parse(name, data)
                assert data[result.position : result.position + result.length] == batch
        assert batcher.staged_bytes == batcher.uploads == 0
        world.check()
        return world.digest(), ended, sum(sim.ended.values())


def test_what_is_called_stored_is_there_whatever_the_store_does() -> None:
    total: Counter[str] = Counter()
    for seed in range(25):
        _, ended, _ = weather(seed)
        total += ended
    assert {"Stored", "STORAGE_FAILED", "NOT_NOW"} <= set(total)
    assert total["Stored"] > 200


def test_the_same_seed_gives_the_same_run() -> None:
    assert weather(3) == weather(3)
    assert weather(3)[0] != weather(4)[0]


def test_errors_of_reads_are_always_definite() -> None:
    with World(1) as world:
        node = started(world)
        store = SimStore(world)
        store.lost = 1.0
        with pytest.raises(NotDone):
            run(world, node, store.client(node).get("a"))
        with pytest.raises(OutcomeUnknown):
            run(world, node, store.client(node).delete_many(["a"]))
        assert issubclass(NotDone, StoreError)
