"""What waits for the log's next write: in order, never too early, and never more than the newest twice."""

from __future__ import annotations

from functools import partial
from typing import Any

from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.wal.after_sync import AfterSync

REPLY, VOTE = MessageKind.APPEND_REPLY, MessageKind.VOTE_REPLY


class Sending:
    """Messages of group 7 to node 2, unless said otherwise, each with a number to know it by."""

    def __init__(self) -> None:
        self.waiting = AfterSync()
        self.sent: list[Any] = []

    def add(
        self, lsn: int, writing: int, number: int, *, group: int = 7, peer: int = 2, kind: MessageKind = REPLY
    ) -> None:
        send = partial(self.sent.append, (group, peer, kind, number))
        self.waiting.message(lsn, writing, group, peer, kind, send)


def test_each_message_leaves_once_its_record_is_durable_and_in_order() -> None:
    sending = Sending()
    sending.add(1, 0, 1)
    sending.add(2, 0, 2, peer=3)
    sending.waiting.callback(2, lambda: sending.sent.append("called"))
    sending.add(3, 0, 3, kind=VOTE)
    sending.waiting.release(0)
    assert sending.sent == []
    sending.waiting.release(2)
    assert sending.sent == [(7, 2, REPLY, 1), (7, 3, REPLY, 2), "called"]
    sending.waiting.release(3)
    assert sending.sent[3:] == [(7, 2, VOTE, 3)]
    assert len(sending.waiting) == 0


def test_the_newest_takes_the_place_of_what_would_leave_with_the_same_write() -> None:
    sending = Sending()
    sending.add(4, 0, 4)
    for lsn in range(5, 1000):
        sending.add(lsn, 4, lsn)
        sending.add(lsn, 4, lsn, group=8)
        sending.add(lsn, 4, lsn, peer=3)
        sending.add(lsn, 4, lsn, kind=VOTE)
    assert len(sending.waiting) == 5
    sending.waiting.release(998)
    assert sending.sent == [(7, 2, REPLY, 4)], "the newest tell of record 999"
    sending.waiting.release(999)
    assert sending.sent[1:] == [(7, 2, REPLY, 999), (8, 2, REPLY, 999), (7, 3, REPLY, 999), (7, 2, VOTE, 999)]


def test_what_waits_for_the_write_under_way_is_not_held_up_by_what_comes_after() -> None:
    """A busy follower always has something newer to say: each write must let something out."""
    sending = Sending()
    sending.add(1, 0, 1)
    for write in range(1, 6):
        sending.add(write + 1, write, write + 1)
        sending.waiting.release(write)
        assert sending.sent[-1] == (7, 2, REPLY, write)


def test_callbacks_are_all_called() -> None:
    called: list[int] = []
    waiting = AfterSync()
    for number in range(3):
        waiting.callback(1, partial(called.append, number))
    waiting.release(1)
    assert called == [0, 1, 2]


def test_message_that_takes_an_earlier_ones_place_holds_up_none_behind_that_place() -> None:
    """It waits for a later record than they do."""
    sending = Sending()
    sending.add(1, 0, 1)
    sending.add(2, 0, 2, group=8)
    sending.add(3, 0, 3)
    sending.waiting.release(2)
    assert sending.sent == [(8, 2, REPLY, 2)]
    sending.waiting.release(3)
    assert sending.sent[1:] == [(7, 2, REPLY, 3)]
