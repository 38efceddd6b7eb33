"""An overloaded node tells of its pauses in few lines, and of all of them."""

from __future__ import annotations

import pytest

from strandline.node.raft.gap_log import INTERVAL_SECONDS, GapLog


def test_pauses_that_come_again_and_again_are_told_together(caplog: pytest.LogCaptureFixture) -> None:
    gaps = GapLog()
    for now, gap in (
        (0.0, 0.25),
        (1.0, 0.5),
        (2.0, 0.75),
        (INTERVAL_SECONDS, 0.3),
        (3 * INTERVAL_SECONDS, 0.2),
    ):
        gaps.add(now, gap)
    line = "the event loop did not run for {} s, or the clock jumped"
    assert caplog.messages == [
        line.format("0.25"),
        line.format("0.30") + " (2 more since the last report, 1.25 s together, the longest 0.75 s)",
        line.format("0.20"),
    ]
