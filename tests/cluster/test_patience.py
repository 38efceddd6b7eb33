"""Commands that read offsets from brokers whose leaders and coordinators are being elected at first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.cluster import kafka_errors
from strandline.node.kafka.wire.response_types import ResponseTypes
from tests.cluster.command import Done, strandline
from tests.kafka.wire.toy_broker import NO_THROTTLE, NODE, ToyBroker
from tests.kafka.wire.toy_server import Toy, running

LEADERS = [ErrorCode.offset_not_available, ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available]
COORDINATORS = [ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator]
FOR_GOOD = ErrorCode.topic_authorization_failed


class Unready(ToyBroker):
    """Refuses each kind of request with the codes of `refusals`, one after the other, and then serves it.

    A group has committed 1 for partition 0 of each topic, and takes what is committed.
    """

    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self.refusals: dict[str, list[ErrorCode]] = {}
        self.committed: list[int] = []

    def _refusal(self, kind: str) -> ErrorCode:
        left = self.refusals.get(kind)
        return left.pop(0) if left else ErrorCode.none

    async def _list_offsets(self, a: ResponseTypes, ask: Any, header: Any) -> Any:
        refusal = self._refusal("ListOffsets")
        if refusal is ErrorCode.none:
            return await super()._list_offsets(a, ask, header)
        refused = partial(
            a.ListOffsetsPartitionResponse, error_code=refusal, offset=-1, timestamp=-1, leader_epoch=-1
        )
        topics = tuple(
            a.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(refused(partition_index=each.partition_index) for each in topic.partitions),
            )
            for topic in ask.topics
        )
        return a.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=topics)

    async def _find_coordinator(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        host, port = self.address
        here = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": NODE,
            "host": host,
            "port": port,
        }
        coordinators = tuple(a.Coordinator(key=key, **here) for key in getattr(ask, "coordinator_keys", ()))
        return a.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators, **here)

    async def _consumer_group_describe(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        classic = partial(
            a.DescribedGroup,
            error_code=ErrorCode.group_id_not_found,
            error_message=None,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=(),
        )
        groups = tuple(classic(group_id=group) for group in ask.group_ids)
        return a.ConsumerGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=groups)

    async def _describe_groups(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        refusal = self._refusal("DescribeGroups")
        described = partial(
            a.DescribedGroup,
            error_code=refusal,
            group_state="" if refusal else "Empty",
            protocol_type="consumer",
            protocol_data="",
            members=(),
        )
        groups = tuple(described(group_id=group) for group in ask.groups)
        return a.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=groups)

    async def _offset_fetch(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        refusal = self._refusal("OffsetFetch")
        committed = a.OffsetFetchResponsePartitions(
            partition_index=0,
            committed_offset=1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=ErrorCode.none,
        )
        rows = tuple(a.OffsetFetchResponseTopics(name=name, partitions=(committed,)) for name in self.topics)
        groups = tuple(
            a.OffsetFetchResponseGroup(
                group_id=group.group_id, topics=() if refusal else rows, error_code=refusal
            )
            for group in ask.groups
        )
        return a.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)

    async def _offset_commit(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        refusal = self._refusal("OffsetCommit")
        if refusal is ErrorCode.none:
            self.committed += [each.committed_offset for topic in ask.topics for each in topic.partitions]
        answered = partial(a.OffsetCommitResponsePartition, error_code=refusal)
        topics = tuple(
            a.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(answered(partition_index=each.partition_index) for each in topic.partitions),
            )
            for topic in ask.topics
        )
        return a.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)


@pytest.fixture
def toy() -> Iterator[Toy]:
    with running(Unready) as served:
        served.broker.create("t", 2)
        yield served


@pytest.fixture
def refusals(toy: Toy) -> dict[str, list[ErrorCode]]:
    assert isinstance(toy.broker, Unready)
    return toy.broker.refusals


@pytest.fixture
def run(toy: Toy, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def command(*arguments: str) -> Done:
        return strandline(capfd, monkeypatch, *arguments, "--bootstrap", toy.address)

    return command


RESET = ("group", "reset-offsets", "g", "--topic", "t", "--from", "end")


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "trim", "t", "--before", "7d", "--dry-run"),
        (*RESET, "--dry-run"),
        ("consume", "t", "--from", "end"),
        ("consume", "t", "--from", "7d"),
    ],
    ids=" ".join,
)
def test_a_partition_s_offsets_are_asked_for_again(
    run: Any, refusals: dict[str, list[ErrorCode]], command: tuple[str, ...]
) -> None:
    refusals["ListOffsets"] = [*LEADERS]
    done = run(*command)
    assert (done.status, done.err) == (0, "")
    assert refusals["ListOffsets"] == []


def test_a_group_s_offsets_are_asked_for_and_set_again(
    toy: Toy, run: Any, refusals: dict[str, list[ErrorCode]]
) -> None:
    refusals["OffsetCommit"] = [*COORDINATORS]
    done = run(*RESET)
    assert (done.status, done.err) == (0, "")
    assert isinstance(toy.broker, Unready)
    assert toy.broker.committed == [0, 0]
    refusals["DescribeGroups"] = [*COORDINATORS]
    # Not NOT_COORDINATOR: librdkafka 2.16 ends the process on it (confluentinc/librdkafka, issue 5040). The
    # group is described first, so its coordinator is known to be there.
    refusals["OffsetFetch"] = [ErrorCode.coordinator_load_in_progress] * 2
    done = run("group", "describe", "g", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["offsets"] == [
        {"topic": "t", "partition": 0, "offset": 1, "end": 0, "lag": 0}
    ]
    assert refusals == {"OffsetCommit": [], "DescribeGroups": [], "OffsetFetch": []}


def test_it_gives_up_in_time_and_says_why(
    run: Any, refusals: dict[str, list[ErrorCode]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_errors, "PASSING_SECONDS", 0.5)
    refusals["ListOffsets"] = [ErrorCode.offset_not_available] * 1000
    began = time.monotonic()
    done = run(*RESET, "--dry-run")
    assert time.monotonic() - began < 5
    assert done.status == 1
    assert "the offsets of t cannot be read: " in done.err
    assert "(OFFSET_NOT_AVAILABLE)" in done.err
    assert 2 < 1000 - len(refusals["ListOffsets"]) < 30, "it pauses, and not for long"


def test_a_refusal_that_is_none_of_these_ends_it_at_once(
    run: Any, refusals: dict[str, list[ErrorCode]]
) -> None:
    refusals["ListOffsets"] = [FOR_GOOD] * 1000
    done = run(*RESET, "--dry-run")
    assert done.status == 1
    assert "(TOPIC_AUTHORIZATION_FAILED)" in done.err
    assert len(refusals["ListOffsets"]) == 999
