"""Programs of views in the controller: what begins, what is refused, what a cutover binds."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.statemachine.controller import view_attempts
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    ApplyViews,
    CancelViews,
    CreatePartitions,
    CutOverViews,
    DeleteTopic,
    DropViews,
    PauseViews,
    ResumeViews,
    StartViewWorker,
    StopViews,
    ViewsPaused,
)
from strandline.statemachine.controller.feature_levels import SUCCESSION
from strandline.statemachine.controller.view_state import is_hidden
from strandline.statemachine.internal_topics import GROUPS_TOPIC
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log
from tests.statemachine.view_log import A, B, C, Views

MISSING = KafkaError.UNKNOWN_TOPIC_OR_PARTITION


def test_a_first_version_is_filled_out_of_sight_and_named_by_one_entry() -> None:
    log = Views()
    attempt = log.begin(("v", "out", A), ("w", "more", B))
    assert all(map(is_hidden, log.names))
    assert log.machine.topic("out") is None
    hidden = set(log.names.values())
    for one in hidden:
        topic = log.machine.topic_by_id(one)
        assert topic is not None
        assert topic.configs["cleanup.policy"] == "compact"
        assert len(topic.partitions) == 2
    log.do(StartViewWorker("p", attempt, False, 70))
    assert log.do(CutOverViews("p", attempt, 70, 0, "state")) == 1
    assert set(log.names) == {"out", "more"}
    assert set(log.names.values()) == hidden
    assert log.program.live is not None
    assert (log.program.live.number, log.program.live.checkpoint, log.program.next) == (1, "state", None)
    assert log.do(CutOverViews("p", attempt, 70, 0, "state")) == 1, "a retry"


def test_the_next_version_keeps_replaces_renames_adds_and_drops_in_one_entry() -> None:
    log = Views()
    log.live(("kept", "kept", A), ("changed", "changed", B), ("old", "old", C), ("gone", "gone", "d" * 64))
    before = log.names
    attempt = log.begin(
        ("kept", "kept", A), ("changed", "changed", "e" * 64), ("new", "new", C), ("more", "more", "f" * 64)
    )
    assert before.items() <= log.names.items(), "nothing is seen of it yet"
    hidden = {one for name, one in log.names.items() if is_hidden(name)}
    assert len(hidden) == 2
    log.cut_over(attempt)
    after = log.names
    assert set(after) == {"kept", "changed", "new", "more"}
    assert after["kept"] == before["kept"]
    assert after["new"] == before["old"]
    assert {after["changed"], after["more"]} == hidden
    assert log.machine.topic_is_gone(before["changed"])
    assert log.machine.topic_is_gone(before["gone"])


def test_two_views_may_swap_their_topics_names() -> None:
    log = Views()
    log.live(("v", "one", A), ("w", "two", B))
    before = log.names
    log.cut_over(log.begin(("v", "two", A), ("w", "one", B)))
    assert log.names == {"two": before["one"], "one": before["two"]}
    assert log.machine.topic("one") != log.machine.topic("two")


def test_views_that_are_equal_keep_their_own_topics() -> None:
    log = Views()
    log.live(("v", "one", A), ("w", "two", A))
    before = log.names
    attempt = log.begin(("w", "two", A), ("v", "one", A), ("x", "three", B))
    log.cut_over(attempt)
    assert before.items() <= log.names.items()


def test_what_is_live_already_is_no_attempt_and_takes_the_text() -> None:
    log = Views()
    attempt = log.live(("v", "out", A))
    assert log.do(log.request(("v", "out", A), text="other words")) == attempt
    assert log.program.next is None
    assert log.program.live is not None
    assert log.program.live.text == "other words"


def test_a_retry_of_a_beginning_is_the_same_attempt() -> None:
    log = Views()
    request = log.request(("v", "out", A))
    attempt = log.do(request)
    assert isinstance(attempt, int)
    assert log.do(request) == attempt
    log.cut_over(attempt)
    assert log.do(request) == attempt
    log.void(StartViewWorker("p", attempt, False, 80), "has gone live")
    log.do(DropViews("p", log.program.created))
    assert log.refused(request)[0] is KafkaError.INCONSISTENT_TOPIC_ID


@pytest.mark.parametrize(
    ("views", "more", "error", "says"),
    [
        (
            [("v", "out", A)],
            {"inputs": ("in", "nowhere")},
            KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
            "TOPIC_MISSING",
        ),
        (
            [("v", "out", A)],
            {"inputs": (GROUPS_TOPIC,)},
            KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
            "TOPIC_MISSING",
        ),
        ([("v", "in", A)], {}, KafkaError.INVALID_REQUEST, "RECURSIVE_VIEW"),
        ([("v", "other", A)], {}, KafkaError.TOPIC_ALREADY_EXISTS, "TOPIC_NAME_TAKEN"),
        ([("v", "o.ut", A), ("w", "o_ut", B)], {}, KafkaError.INVALID_REQUEST, "TOPIC_NAME_TAKEN"),
        ([("v", "__view.x", A)], {}, KafkaError.TOPIC_ALREADY_EXISTS, "TOPIC_NAME_TAKEN"),
        ([("v", GROUPS_TOPIC, A)], {}, KafkaError.TOPIC_ALREADY_EXISTS, "TOPIC_NAME_TAKEN"),
        ([("v", "no/name", A)], {}, KafkaError.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        ([("v", "out", A)], {"program": "a/b"}, KafkaError.INVALID_REQUEST, "letters, digits"),
        ([("v", "out", A)], {"replication_factor": 4}, KafkaError.INVALID_REPLICATION_FACTOR, "replicate"),
    ],
)
def test_what_is_refused_creates_nothing(views: Any, more: Any, error: KafkaError, says: str) -> None:
    log = Views()
    found, message = log.refused(log.request(*views, **more))
    assert found is error
    assert says in message


def test_one_of_many_topics_that_cannot_be_created_creates_none() -> None:
    log = Views()
    request = log.request(("v", "out", A), ("w", "more", B))
    (view, topic, one, _, sink), other = request.views
    vast = ApplyViews(**{**_fields(request), "views": (other, (view, topic, one, 20_000, sink))})
    assert log.refused(vast)[0] is KafkaError.POLICY_VIOLATION
    twice = ApplyViews(**{**_fields(request), "views": (other, (view, topic, other[2], 2, sink))})
    assert log.refused(twice)[0] is KafkaError.INCONSISTENT_TOPIC_ID


def _fields(request: ApplyViews) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}


def test_a_second_attempt_waits_for_the_first() -> None:
    log = Views()
    attempt = log.begin(("v", "out", A))
    error, message = log.refused(log.request(("v", "out", B)))
    assert error is KafkaError.INVALID_REQUEST
    assert "BOOTSTRAP_IN_PROGRESS" in message
    log.do(CancelViews("p", attempt, "enough"))
    assert log.program.ended == "enough"
    assert log.names == {}
    log.begin(("v", "out", B))


def test_a_cancelled_attempt_leaves_the_live_version_as_it_was() -> None:
    log = Views()
    live = log.live(("v", "out", A), ("w", "more", B))
    before = log.names
    attempt = log.begin(("v", "out", C), ("w", "more", B))
    assert log.do(CancelViews("p", attempt, "")) == 1
    assert log.names == before
    assert log.do(CancelViews("p", attempt, "")) == 0
    log.void(CancelViews("p", live, ""), "is live already")
    log.do(StartViewWorker("p", live, True, 60))
    log.void(CutOverViews("p", attempt, 0 + 70, 0, "state"), "that attempt has ended")


def test_a_cancelled_attempt_takes_its_pause_with_it() -> None:
    """The live version goes on at once, and not after its patience."""
    log = Views()
    log.live(("v", "out", A))
    attempt = log.begin(("v", "out", B))
    log.paused(attempt)
    log.do(CancelViews("p", attempt, ""))
    assert log.pause() is None
    assert log.program.next_worker == 0


def test_programs_that_read_each_other_are_refused() -> None:
    log = Views()
    log.live(("v", "first", A))
    attempt = log.do(log.request(("w", "second", B), program="q", inputs=("first",)))
    assert isinstance(attempt, int)
    log.do(StartViewWorker("q", attempt, False, 9))
    log.number(CutOverViews("q", attempt, 9, 0, "state"))
    log.void(log.request(("v", "first", C), inputs=("second",)), "RECURSIVE_VIEW")


def test_names_of_views_are_kept_for_them_and_their_topics_are_theirs() -> None:
    log = Views()
    attempt = log.begin(("v", "out", A))
    assert log.refused(log.creation(50, "out"))[0] is KafkaError.TOPIC_ALREADY_EXISTS
    assert log.refused(log.creation(51, "__view.mine"))[0] is KafkaError.INVALID_TOPIC_EXCEPTION
    other = log.refused(log.request(("x", "out", B), program="q"))
    assert other[0] is KafkaError.TOPIC_ALREADY_EXISTS
    log.cut_over(attempt)
    one = log.names["out"]
    assert log.refused(DeleteTopic(one))[0] is KafkaError.POLICY_VIOLATION
    assert log.refused(CreatePartitions(one, 5, None))[0] is KafkaError.POLICY_VIOLATION
    assert log.do(DropViews("p", log.program.created)) == 1
    assert log.machine.topic_is_gone(one)
    assert not log.machine.view_programs


def test_a_late_drop_spares_a_later_program_of_the_same_name() -> None:
    log = Views()
    log.begin(("v", "out", A))
    drop = DropViews("p", log.program.created)
    assert log.do(drop) == 1
    log.begin(("v", "out", A))
    assert log.do(drop) == 0
    assert log.program.next is not None


def test_a_cutover_is_void_once_its_pause_has_ended() -> None:
    log = Views()
    live = log.live(("v", "out", A))
    attempt = log.begin(("v", "out", A), ("w", "more", B))
    log.do(StartViewWorker("p", attempt, False, 70))
    log.do(StartViewWorker("p", live, True, 60))
    pause = log.number(PauseViews("p", attempt, 70, b"5"))
    assert log.number(PauseViews("p", attempt, 70, b"5")) == pause
    late = CutOverViews("p", attempt, 70, pause, "state")
    log.void(late, f"pause {pause} has ended, or the live version has not stopped")
    log.number(ViewsPaused("p", live, 60, pause, b"6"))
    assert log.program.pause is not None
    assert log.program.pause.reached == b"6"
    log.number(ResumeViews("p", attempt, pause))
    log.void(late, f"pause {pause} has ended")
    again = log.number(PauseViews("p", attempt, 70, b"7"))
    assert again == pause + 1
    log.void(ViewsPaused("p", live, 60, pause, b"6"), f"pause {pause} has ended")
    log.number(ViewsPaused("p", live, 60, again, b"8"))
    log.void(late, f"pause {pause} has ended")
    log.number(ResumeViews("p", attempt, pause))
    assert log.program.pause is not None, "a late resumption ends no later pause"
    log.number(CutOverViews("p", attempt, 70, again, "state"))
    assert log.names.keys() == {"out", "more"}


def test_a_version_that_keeps_no_topic_needs_a_pause_too_for_its_topics_get_names_that_others_write() -> None:
    log = Views()
    live = log.live(("v", "out", A))
    attempt = log.begin(("v", "out", B))
    log.do(StartViewWorker("p", attempt, False, 70))
    log.do(StartViewWorker("p", live, True, 60))
    log.void(CutOverViews("p", attempt, 70, 0, "state"), "pause 0 has ended")
    pause = log.number(PauseViews("p", attempt, 70, b"5"))
    log.number(ViewsPaused("p", live, 60, pause, b"6"))
    log.number(CutOverViews("p", attempt, 70, pause, "state"))


@pytest.mark.parametrize("which", ["live", "next"])
def test_another_process_voids_what_was_agreed_on_with_the_one_before(which: str) -> None:
    log = Views()
    live = log.live(("v", "out", A))
    attempt = log.begin(("v", "out", A), ("w", "more", B))
    pause = log.paused(attempt)
    log.do(StartViewWorker("p", attempt, False, 70))
    assert log.pause() == pause, "a retry of the same process's word"
    log.do(StartViewWorker("p", live if which == "live" else attempt, which == "live", 99))
    assert log.pause() is None
    log.void(CutOverViews("p", attempt, 70, pause, "state"), "too late")
    if which == "next":
        log.void(PauseViews("p", attempt, 70, b"9"), "another process fills it")
    else:
        log.void(ViewsPaused("p", live, 60, pause, b"6"), "another process runs it")
        log.void(StopViews("p", live, 60, "bad"), "another process runs it")


def test_a_late_word_of_a_process_does_not_make_it_count_again() -> None:
    log = Views(level=SUCCESSION)
    attempt = log.begin(("v", "out", A))
    first = StartViewWorker("p", attempt, False, 70, 0)
    log.number(first)
    log.number(first)
    late = CutOverViews("p", attempt, 70, 0, "an older state")
    log.number(StartViewWorker("p", attempt, False, 71, 70))
    log.void(first, "another process has begun since")
    log.void(late, "another process fills it")
    assert log.program.next_worker == 71
    log.number(CutOverViews("p", attempt, 71, 0, "state"))
    lives = StartViewWorker("p", attempt, True, 71, 0)
    log.number(lives)
    log.number(StartViewWorker("p", attempt, True, 72, 71))
    log.void(lives, "another process has begun since")
    log.void(StopViews("p", attempt, 71, "bad"), "another process runs it")
    log.number(StopViews("p", attempt, 72, "bad"))


def test_a_late_word_counts_where_the_process_before_is_not_said() -> None:
    """As builds below feature level 8 apply it: here an older state is bound to topics that went on."""
    log = Views(level=SUCCESSION)
    attempt = log.begin(("v", "out", A))
    first = StartViewWorker("p", attempt, False, 70)
    log.number(first)
    log.number(StartViewWorker("p", attempt, False, 71))
    log.number(first)
    log.number(CutOverViews("p", attempt, 70, 0, "an older state"))
    assert log.program.live is not None
    assert log.program.live.checkpoint == "an older state"


def test_a_version_that_stopped_is_filled_anew_and_ends_an_attempt_that_kept_its_topics() -> None:
    log = Views()
    live = log.live(("v", "out", A))
    before = log.names
    log.do(StartViewWorker("p", live, True, 60))
    log.begin(("v", "out", A), ("w", "more", B))
    log.number(StopViews("p", live, 60, "a bad record"))
    assert (log.program.stopped, log.program.next) == ("a bad record", None)
    assert "stopped" in log.program.ended
    assert log.names == before
    attempt = log.begin(("v", "out", A))
    assert attempt != live
    log.do(StartViewWorker("p", attempt, False, 70))
    log.void(PauseViews("p", attempt, 70, b"5"), "no live version")
    log.number(CutOverViews("p", attempt, 70, 0, "state"))
    assert log.names.keys() == {"out"}
    assert log.names["out"] != before["out"]
    assert log.program.stopped == ""


def test_a_stop_voids_what_was_decided_before_it_and_no_process_of_the_stopped_version_starts() -> None:
    log = Views()
    live = log.live(("v", "out", A))
    attempt = log.begin(("v", "out", B))
    pause = log.paused(attempt)
    late = CutOverViews("p", attempt, 70, pause, "state")
    log.number(StopViews("p", live, 60, "an operator stopped it"))
    assert log.program.next is not None, "it keeps no topic of the stopped version"
    log.void(late, f"pause {pause} has ended, for the live version was stopped")
    log.void(StartViewWorker("p", live, True, 61), "the version was stopped")
    assert log.program.live_worker == 60
    log.number(CutOverViews("p", attempt, 70, 0, "state"))
    assert log.number(late) == 2, "its outcome was the same"
    assert not log.program.stopped
    # A version of which no process has begun can be stopped too.
    log.number(StopViews("p", attempt, 0, "an operator stopped it"))
    assert log.program.stopped


def test_there_are_not_too_many_programs() -> None:
    log = Views()
    for number in range(view_attempts.MAX_PROGRAMS):
        log.begin(("v", f"out{number}", A), program=f"p{number}")
    assert log.refused(log.request(("v", "out", A)))[0] is KafkaError.POLICY_VIOLATION


def test_a_snapshot_has_programs_and_one_before_them_is_read() -> None:
    log = Views()
    log.live(("v", "out", A))
    attempt = log.begin(("v", "out", A), ("w", "more", B))
    log.do(StartViewWorker("p", attempt, False, 70))
    log.number(PauseViews("p", attempt, 70, b"5"))
    again = Controller(lambda *_: None)
    again.restore(log.machine.snapshot())
    assert again.view_programs == log.machine.view_programs
    assert again.snapshot() == log.machine.snapshot()
    empty = Log(nodes=1)
    fields = msgpack.unpackb(empty.machine.snapshot())
    assert (fields.pop("view_programs"), fields.pop("client_quotas")) == ([], [])
    again.restore(msgpack.packb({**fields, "format": 7}))
    assert again.snapshot() == empty.machine.snapshot()
