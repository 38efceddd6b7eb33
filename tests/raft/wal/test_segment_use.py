"""Which segments may go: never one that holds something whose only copy it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import RecordKind


def test_segment_with_entries_no_snapshot_covers_stays() -> None:
    use = SegmentUse()
    use.note(1, 7, RecordKind.ENTRIES, 10)
    use.note(2, 7, RecordKind.STATE, 10)
    use.note(2, 7, RecordKind.SNAPSHOT, 10)
    assert use.first_needed(1, 3, lambda _: 9) == 1
    assert use.pinned_by_entries(1, lambda _: 9) == [7]
    assert use.first_needed(1, 3, lambda _: 10) == 2


def test_segment_with_the_newest_vote_or_base_stays() -> None:
    use = SegmentUse()
    use.note(1, 7, RecordKind.STATE, 0)
    use.note(2, 7, RecordKind.RESET, 0)
    assert use.first_needed(1, 5, lambda _: 99) == 1
    assert use.pinned_by_metadata(1) == [7]
    use.note(4, 7, RecordKind.STATE, 0)
    assert use.first_needed(1, 5, lambda _: 99) == 2
    assert use.pinned_by_metadata(2) == [7]
    use.note(5, 7, RecordKind.SNAPSHOT, 0)
    assert use.first_needed(1, 5, lambda _: 99) == 4


def test_current_segment_always_stays() -> None:
    assert SegmentUse().first_needed(1, 4, lambda _: 0) == 4


def test_removed_group_pins_nothing() -> None:
    use = SegmentUse()
    use.note(1, 7, RecordKind.ENTRIES, 10)
    use.note(1, 7, RecordKind.STATE, 10)
    use.note(3, 7, RecordKind.FORGET, 0)
    assert use.first_needed(1, 4, lambda _: 0) == 4


def test_one_group_pins_for_all() -> None:
    use = SegmentUse()
    for group in (1, 2):
        use.note(1, group, RecordKind.ENTRIES, 10)
        use.note(3, group, RecordKind.STATE, 0)
        use.note(3, group, RecordKind.SNAPSHOT, 0)
    covered = {1: 10, 2: 9}
    assert use.first_needed(1, 4, covered.__getitem__) == 1
    assert use.pinned_by_entries(1, covered.__getitem__) == [2]


KINDS = st.sampled_from([RecordKind.ENTRIES, RecordKind.STATE, RecordKind.SNAPSHOT, RecordKind.RESET])
NOTES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), KINDS), max_size=30)


@given(NOTES, st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_nothing_needed_lies_in_a_segment_that_may_go(
    notes: list[tuple[int, int, RecordKind]], covered: list[int]
) -> None:
    use, segment = SegmentUse(), 1
    entries: list[tuple[int, int, int]] = []
    newest: dict[tuple[int, bool], int] = {}
    for index, (rolls, group, kind) in enumerate(notes, 1):
        segment += rolls
        use.note(segment, group, kind, index)
        if kind == RecordKind.ENTRIES:
            entries.append((segment, group, index))
        else:
            newest[group, kind == RecordKind.STATE] = segment
    needed = use.first_needed(1, segment, lambda group: covered[group - 1])
    assert all(at >= needed for at, group, last in entries if last > covered[group - 1])
    assert all(at >= needed for at in newest.values())
    assert needed <= segment
