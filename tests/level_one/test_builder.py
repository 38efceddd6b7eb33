"""The builder: objects hold what level zero held, sources are read once, and trouble stays where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one.builder import (
    BATCHES_AT_A_TIME,
    BYTES_AT_A_TIME,
    BuilderConfig,
    BuildFailed,
    Merge,
    Output,
    StoreBuilder,
)
from strandline.node.objectstore.store import Buffer
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import Extent, ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.level_one.builder_case import CONFIG, Case, unique
from tests.level_one.stamped import Sent, encoded, sent, stamped
from tests.level_zero.samples import OTHER_TOPIC, TOPIC, identity, run


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    with made.world:
        yield made
        made.world.check()


partitions = st.sampled_from([(TOPIC, 0), (TOPIC, 1), (OTHER_TOPIC, 0)])
batches = st.builds(
    sent, st.binary(max_size=900), st.integers(1, 9), st.integers(0, 10_000), st.integers(0, 5)
)
objects = st.lists(st.tuples(partitions, batches, st.booleans()), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(objects, min_size=1, max_size=6),
    st.builds(
        BuilderConfig,
        block_bytes=st.integers(1, 2000),
        join_gap_bytes=st.integers(0, 500),
        max_get_bytes=st.integers(1, 3000),
        max_gets=st.integers(1, 4),
        max_puts=st.integers(1, 3),
    ),
)
def test_objects_hold_what_level_zero_and_the_log_held(
    stored: list[list[tuple[tuple[bytes, int], Sent, bool]]], config: BuilderConfig
) -> None:
    case = Case(config)
    with case.world:
        for number, content in enumerate(stored):
            for key, batch, inline in content:
                if inline:
                    case.inline(*key, batch)
            case.store(number, [(*key, batch) for key, batch, inline in content if not inline])
        outputs = case.outputs()
        for output, result in zip(outputs, case.build(outputs), strict=True):
            case.check(output.topic_id, output.partition, result)
        measures = case.builder.measures
        assert measures.objects == len(outputs)
        assert measures.batches == sum(map(len, case.logs.values()))
        assert measures.failed == 0
        assert measures.gets == case.gets
        assert measures.bytes_written == sum(
            len(data) for name, data in case.sim.objects.items() if name.startswith("l1/")
        )


def many(case: Case, count: int = 4) -> None:
    """Objects with batches of three partitions each, in turns."""
    for number in range(count):
        content = [
            (topic, partition, sent(b"%d %d " % (number, n) * 20, 2))
            for n in range(2)
            for topic, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER_TOPIC, 0))
        ]
        case.store(number, content)


def test_each_source_is_read_once_for_all_outputs(case: Case) -> None:
    many(case)
    outputs = case.outputs()
    case.build(outputs)
    assert case.gets == 4
    assert case.builder.measures.bytes_read == sum(e.length for o in outputs for e in o.extents)
    # What one of them alone wants: its own ranges, not the others'.
    case.build([case.output(TOPIC, 1, 9)])
    assert case.gets == 8


def test_gets_and_puts_under_way_are_bounded(case: Case) -> None:
    many(case, 9)
    under_way: dict[str, int] = {"get": 0, "put": 0}
    most = dict(under_way)
    client = case.sim.client(case.node)

    class Counting(type(client)):  # type: ignore[misc]
        async def get_range(self, key: str, start: int, length: int) -> Buffer:
            return await self.counted("get", super().get_range(key, start, length))

        async def put(self, key: str, parts: Sequence[Buffer]) -> None:
            await self.counted("put", super().put(key, parts))

        async def counted(self, what: str, doing: object) -> Buffer:
            under_way[what] += 1
            most[what] = max(most[what], under_way[what])
            try:
                return await doing  # type: ignore[misc, no-any-return]
            finally:
                under_way[what] -= 1

    builder = StoreBuilder(Counting(case.sim, case.node), CONFIG, loop=case.node.loop)
    results = run(case.world, case.node, builder.build(case.outputs()))
    assert all(isinstance(result, LevelOneExtent) for result in results)
    assert most == {"get": CONFIG.max_gets, "put": CONFIG.max_puts}


def test_a_long_run_is_read_in_bounded_pieces_and_nothing_twice(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.store(1, [(TOPIC, 0, sent(bytes([n]) * 700)) for n in range(10)])
    client = case.sim.client(case.node)
    ranges: list[tuple[int, int]] = []
    whole = type(client).get_range

    async def get_range(self: object, key: str, start: int, length: int) -> Buffer:
        ranges.append((start, start + length))
        return await whole(client, key, start, length)

    monkeypatch.setattr(type(client), "get_range", get_range)
    [result] = case.build([case.output(TOPIC, 0)])
    case.check(TOPIC, 0, result)
    assert max(end - start for start, end in ranges) == CONFIG.max_get_bytes
    ranges.sort()
    assert all(after[0] == before[1] for before, after in pairwise(ranges))


def test_a_damaged_batch_fails_the_output_that_needs_it_alone(case: Case) -> None:
    many(case)
    extent = case.logs[TOPIC, 1][3][1]
    assert isinstance(extent, ObjectExtent)
    case.sim.flip_bit(extent.object_name, extent.position + 70)
    good, bad, other = case.build(case.outputs())
    case.check(TOPIC, 0, good)
    case.check(OTHER_TOPIC, 0, other)
    end = extent.position + extent.length
    reason = (
        f"object {extent.object_name}, bytes {extent.position} to {end}: the batch's checksum does not match"
    )
    assert bad == BuildFailed(reason, retriable=False)
    assert case.sim.keys("l1/") == [
        level_one_name(TOPIC, 0, 3, unique(0)),
        level_one_name(OTHER_TOPIC, 0, 3, unique(2)),
    ]
    assert case.builder.measures.failed == 1


def test_a_damaged_inline_batch_is_found(case: Case) -> None:
    case.inline(TOPIC, 0, sent(b"good"))
    case.inline(TOPIC, 0, Sent(sent(b"bad").data[:-1] + b"?", 1, 1000, 3))
    [failed] = case.build([case.output(TOPIC, 0)])
    assert isinstance(failed, BuildFailed)
    assert "inline batch at offset 41, bytes 0 to 64: the batch's checksum" in failed.reason


def test_a_missing_source_fails_those_that_need_it_alone(case: Case) -> None:
    many(case, 2)
    case.store(7, [(TOPIC, 1, sent(b"alone"))])
    del case.sim.objects[object_name(4, identity(7))]
    good, bad, other = case.build(case.outputs())
    case.check(TOPIC, 0, good)
    case.check(OTHER_TOPIC, 0, other)
    assert isinstance(bad, BuildFailed)
    assert not bad.retriable
    assert bad.reason == (f"get_range {object_name(4, identity(7))}, bytes 16 to 82: there is no such object")


def test_a_cut_source_fails_those_behind_the_cut_alone(case: Case) -> None:
    many(case, 1)
    name = object_name(4, identity(0))
    first = case.logs[TOPIC, 1][0][1]
    assert isinstance(first, ObjectExtent)
    case.sim.objects[name] = case.sim.objects[name][: first.position + 10]
    good, bad, other = case.build(case.outputs())
    case.check(TOPIC, 0, good)
    for failed in (bad, other):
        assert isinstance(failed, BuildFailed)
        assert not failed.retriable
        assert f"object {name}, bytes " in failed.reason
        assert "the object is cut" in failed.reason


@pytest.mark.parametrize("fate", ["refused", "broken"])
def test_a_failed_put_is_a_result_and_can_be_tried_again(case: Case, fate: str) -> None:
    many(case, 1)
    setattr(case.sim, fate, 1.0)
    case.sim._fate = lambda operation: fate if operation == "put" else "done"  # type: ignore[method-assign]
    results = case.build(case.outputs())
    assert all(isinstance(result, BuildFailed) and result.retriable for result in results)
    assert case.builder.measures.failed == 3
    del case.sim._fate
    setattr(case.sim, fate, 0.0)
    [result] = case.build([case.output(TOPIC, 0, 8)])
    case.check(TOPIC, 0, result)


def test_a_store_that_breaks_its_promise_fails_the_output_and_not_the_builder(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(case, 1)
    client = case.sim.client(case.node)
    reported: list[object] = []
    monkeypatch.setattr(case.node.loop, "call_exception_handler", reported.append)

    class Broken(type(client)):  # type: ignore[misc]
        async def get_range(self, key: str, start: int, length: int) -> Buffer:
            raise KeyError("a bug")

    builder = StoreBuilder(Broken(case.sim, case.node), CONFIG, loop=case.node.loop)
    [failed] = run(case.world, case.node, builder.build([case.output(TOPIC, 0)]))
    assert isinstance(failed, BuildFailed)
    assert "KeyError" in failed.reason
    assert len(reported) == 1


def test_extents_with_holes_are_refused(case: Case) -> None:
    many(case)
    output = case.output(TOPIC, 0)
    holes = Output(TOPIC, 0, 3, unique(5), [*output.extents[:2], *output.extents[3:]])
    with pytest.raises(ValueError, match="comes after"):
        case.build([holes])
    with pytest.raises(ValueError, match="without batches"):
        case.build([Output(TOPIC, 0, 3, unique(6), [])])
    [result] = case.build([output])
    case.check(TOPIC, 0, result)


def test_a_cancelled_job_leaves_nothing_under_way_and_the_next_one_runs(case: Case) -> None:
    many(case)
    for steps in range(0, 40, 3):
        task = case.node.loop.create_task(case.builder.build(case.outputs()))
        case.world.run(case.world.now + steps * 0.005)
        task.cancel()
        assert case.world.run_until(task.done, timeout=10.0, step=0.001)
        left = [one for one in asyncio.all_tasks(case.node.loop) if not one.done()]
        assert left == []
    case.world.run(case.world.now + 5)
    results = case.build([case.output(TOPIC, 0, 77)])
    case.check(TOPIC, 0, results[0])


def test_jobs_take_turns(case: Case) -> None:
    many(case)
    client = case.node.loop
    tasks = [client.create_task(case.builder.build([case.output(TOPIC, 0, n)])) for n in range(3)]
    assert case.world.run_until(lambda: tasks[0].done(), timeout=60, step=0.001)
    assert not tasks[1].done()
    assert case.sim.requests["put"] == 1
    assert case.world.run_until(lambda: tasks[2].done(), timeout=60, step=0.001)
    for task in tasks:
        case.check(TOPIC, 0, task.result()[0])


def test_a_closed_builder_fails_what_is_under_way_and_all_after(case: Case) -> None:
    many(case)
    case.sim.stall()
    first = case.node.loop.create_task(case.builder.build(case.outputs()))
    second = case.node.loop.create_task(case.builder.build(case.outputs()))
    case.world.run(case.world.now + 1)
    assert not first.done()
    run(case.world, case.node, case.builder.close())
    stopped = BuildFailed("the node is stopping", retriable=True)
    assert case.world.run_until(second.done, timeout=1, step=0.001)
    assert first.result() == second.result() == [stopped] * 3
    assert case.build([]) == []
    assert case.build([case.output(TOPIC, 0)]) == [stopped]


# Merging.


def put_objects(case: Case, runs: Sequence[Sequence[Sent]], block_bytes: int = 400) -> list[LevelOneExtent]:
    """Level-one objects of one partition, one after the other."""
    extents = []
    base = 40
    for number, batches in enumerate(runs):
        made = encoded(batches, base, term=number, unique=unique(number), block_bytes=block_bytes)
        name = level_one_name(TOPIC, 0, number, unique(number))
        case.sim.objects[name] = b"".join(made.parts)
        extents.append(made.extent)
        base = made.extent.end_offset
    return extents


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(batches, min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 2000),
    st.integers(1, 3000),
)
def test_a_merged_object_holds_what_its_sources_held(
    runs: list[list[Sent]], block_bytes: int, max_get_bytes: int
) -> None:
    case = Case(BuilderConfig(block_bytes=block_bytes, max_get_bytes=max_get_bytes))
    with case.world:
        sources = put_objects(case, runs, block_bytes)
        merge = Merge(TOPIC, 0, 9, unique(90), sources)
        made = run(case.world, case.node, case.builder.merge(merge))
        assert isinstance(made, LevelOneExtent)
        name = level_one_name(TOPIC, 0, 9, unique(90))
        data = case.sim.objects[name]
        footer = parse(name, data)
        base, expected = 40, []
        for batch in (batch for batches in runs for batch in batches):
            expected.append(stamped(batch, base))
            base += batch.records
        found = []
        for block in footer.blocks:
            assert block.length <= block_bytes or block.batches == 1
            spans = batches_of(name, block, data[block.position : block.end])
            found += [data[span.position : span.position + span.length] for span in spans]
        assert found == expected
        assert (made.base_offset, made.end_offset, made.term, made.size) == (40, base, 9, len(data))
        assert made.max_timestamp == max(source.max_timestamp for source in sources)
        assert case.builder.measures.merges == 1


def test_merging_joins_blocks_and_reads_a_small_source_with_one_get(case: Case) -> None:
    sources = put_objects(case, [[sent(b"x" * 30)] for _ in range(8)])
    merge = Merge(TOPIC, 0, 9, unique(90), sources)
    made = run(case.world, case.node, case.builder.merge(merge))
    assert [block.batches for block in case.footer(TOPIC, 0, made).blocks] == [4, 4]
    assert case.gets == 8


def test_a_merge_of_a_damaged_source_fails_and_says_where(case: Case) -> None:
    runs = [[sent(b"%d" % n * 300)] * 3 for n in range(3)]
    for at, reason in [
        (400, "bytes 377 to 738: the block's checksum does not match"),
        (-30, "the footer's checksum does not match"),
    ]:
        sources = put_objects(case, runs)
        name = level_one_name(TOPIC, 0, 1, unique(1))
        case.sim.flip_bit(name, at % len(case.sim.objects[name]))
        made = run(case.world, case.node, case.builder.merge(Merge(TOPIC, 0, 9, unique(90), sources)))
        assert isinstance(made, BuildFailed)
        assert not made.retriable
        assert name in made.reason
        assert reason in made.reason
    sources = put_objects(case, runs)
    del case.sim.objects[name]
    made = run(case.world, case.node, case.builder.merge(Merge(TOPIC, 0, 9, unique(91), sources)))
    assert isinstance(made, BuildFailed)
    assert f"{name}, bytes 16 to " in made.reason
    assert "there is no such object" in made.reason


def test_the_loop_is_not_held_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """By count, not by time: no step checks more than its share of batches, or of bytes."""
    steps: list[Sequence[Extent]] = []
    whole = LevelOneWriter.seal

    def seal(writer: LevelOneWriter, extents: Sequence[Extent]) -> Extent | None:
        steps.append(extents)
        return whole(writer, extents)

    monkeypatch.setattr(LevelOneWriter, "seal", seal)
    case = Case(BuilderConfig())
    with case.world:
        case.store(1, [(TOPIC, 0, sent(b"")) for _ in range(5000)])
        case.store(2, [(TOPIC, 1, sent(bytes(700_000))) for _ in range(8)])
        for output, result in zip(case.outputs(), case.build(case.outputs()), strict=True):
            case.check(output.topic_id, output.partition, result)
    assert max(map(len, steps)) == BATCHES_AT_A_TIME
    assert 1_400_000 < max(sum(extent.length for extent in step) for step in steps) <= BYTES_AT_A_TIME
    assert sum(map(len, steps)) == 5008
