"""Actions that have to wait until the records before them are durable, most of them messages.

Each waits for the newest record at that time. Their number stays small even if a disk writes nothing for
minutes: a message takes the place of an older one of the same kind, from the same group to the same peer,
that would leave with the same write. The older message counts as lost, which Raft tolerates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Call = Callable[[], object]

_Key = tuple[int, int, int, int]
"""(newest record of the write under way, group, peer, kind of message); -1 and a number for callbacks."""


class AfterSync:
    """Calls in the order of the log; of a group's messages of a kind to a peer two, while a write runs."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[_Key, tuple[int, Call]] = OrderedDict()
        self._callbacks = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def message(self, lsn: int, writing_lsn: int, group: int, peer: int, kind: int, send: Call) -> None:
        """Call `send` once record `lsn`, the newest, is durable, unless such a message takes its place.

        `writing_lsn` is the newest record of the write under way. A message that waits for that write stays:
        if it were replaced too, a busy group would send nothing for as long as there is a newer message.
        """
        key = (writing_lsn, group, peer, kind)
        self._waiting[key] = (lsn, send)
        self._waiting.move_to_end(key)

    def callback(self, lsn: int, call: Call) -> None:
        """Call back once record `lsn`, the newest, is durable; none takes the place of another."""
        self._callbacks += 1
        self._waiting[-1, -1, -1, self._callbacks] = (lsn, call)

    def release(self, synced_lsn: int) -> None:
        """Let everything happen that waited for records up to `synced_lsn`, in order."""
        waiting = self._waiting
        while waiting:
            key, (lsn, call) = next(iter(waiting.items()))
            if lsn > synced_lsn:
                return
            del waiting[key]
            call()
