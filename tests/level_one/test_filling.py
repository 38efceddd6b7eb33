"""Where objects are files, a job reads many of them in one go; what it does not get so it gets alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from strandline.node.level_one.builder import BuilderConfig, BuildFailed, StoreBuilder
from strandline.node.level_one.gathering import FILLED_AT_ONCE
from strandline.node.objectstore.store import Wanted
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import ObjectExtent
from tests.level_one.builder_case import CONFIG, Case
from tests.level_one.stamped import sent
from tests.level_zero.samples import OTHER_TOPIC, TOPIC, identity
from tests.simulation.store import SimStoreClient


class FilesCase(Case):
    """A bucket whose objects a thread reads as files."""

    def __init__(self, config: BuilderConfig = CONFIG) -> None:
        super().__init__(config)
        case = self
        self.fills: list[int] = []
        self.bug: Exception | None = None
        self.unreadable = ""
        """An object that no thread gets in one go with others."""

        class Files(SimStoreClient):
            has_files = True

            async def fill(self, wanted: Sequence[Wanted]) -> list[bool]:
                case.fills.append(len(wanted))
                if case.bug is not None:
                    raise case.bug
                return [case.filled(one) for one in wanted]

        self.builder = StoreBuilder(Files(self.sim, self.node), config, loop=self.node.loop)
        for number in range(FILLED_AT_ONCE + 10):
            content = [
                (topic, partition, sent(b"%d " % number, 2))
                for topic, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER_TOPIC, 0))
            ]
            self.store(number, content)

    def filled(self, wanted: Wanted) -> bool:
        data = b"" if wanted.key == self.unreadable else self.sim.objects.get(wanted.key, b"")
        for at, memory in wanted.pieces:
            piece = data[at : at + len(memory)]
            memory[: len(piece)] = piece
            if len(piece) < len(memory):
                return False
        return True


@pytest.fixture
def case() -> Iterator[FilesCase]:
    made = FilesCase()
    with made.world:
        yield made
        made.world.check()


def check_all(case: FilesCase) -> None:
    outputs = case.outputs()
    for output, result in zip(outputs, case.build(outputs), strict=True):
        case.check(output.topic_id, output.partition, result)


def test_many_files_are_read_in_one_go_and_none_on_its_own(case: FilesCase) -> None:
    check_all(case)
    assert case.gets == 0
    measures = case.builder.measures
    assert measures.gets == sum(case.fills) == FILLED_AT_ONCE + 10
    assert len(case.fills) < 20
    extents = [extent for log in case.logs.values() for _, extent in log]
    assert measures.bytes_read == sum(extent.length for extent in extents)


def test_no_more_are_read_in_one_go_than_their_bound_in_number_and_bytes(case: FilesCase) -> None:
    large = FilesCase(replace(CONFIG, max_get_bytes=1 << 20, max_gets=1))
    with large.world:
        check_all(large)
    assert large.fills == [FILLED_AT_ONCE, 10]
    check_all(case)
    each = max(extent.length for log in case.logs.values() for _, extent in log)
    assert 1 < max(case.fills) * 3 * each < CONFIG.max_get_bytes + 2 * 3 * each


def test_what_is_in_no_partition_that_is_lifted_is_not_read(case: FilesCase) -> None:
    [result] = case.build([case.output(TOPIC, 1)])
    case.check(TOPIC, 1, result)
    assert case.builder.measures.bytes_read == sum(e.length for _, e in case.logs[TOPIC, 1])


def test_files_that_cannot_be_read_so_are_read_on_their_own(case: FilesCase) -> None:
    case.unreadable = object_name(4, identity(5))
    check_all(case)
    assert case.gets == 1


def test_a_store_that_breaks_its_promise_is_asked_for_each_object(
    case: FilesCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(case.node.loop, "call_exception_handler", reported.append)
    case.bug = KeyError("a bug")
    check_all(case)
    assert case.gets == FILLED_AT_ONCE + 10
    assert len(reported) == len(case.fills)


def test_a_missing_and_a_cut_file_fail_those_that_need_them_with_the_usual_words(case: FilesCase) -> None:
    case.store(500, [(TOPIC, 1, sent(b"alone"))])
    del case.sim.objects[object_name(4, identity(500))]
    cut = object_name(4, identity(3))
    last = case.logs[OTHER_TOPIC, 0][3][1]
    assert isinstance(last, ObjectExtent)
    case.sim.objects[cut] = case.sim.objects[cut][: last.position + 10]
    good, missing, cut_short = case.build(case.outputs())
    case.check(TOPIC, 0, good)
    assert isinstance(missing, BuildFailed)
    assert "there is no such object" in missing.reason
    assert isinstance(cut_short, BuildFailed)
    assert f"object {cut}, bytes {last.position} to {last.position + last.length}: the object is cut" in (
        cut_short.reason
    )
