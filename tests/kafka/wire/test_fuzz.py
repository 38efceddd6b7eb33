"""A short run of the fuzzer; `python -m tests.kafka.wire.fuzz` is the long one."""

from __future__ import annotations

import uvloop

from tests.kafka.wire.fuzz import run


def test_mutated_frames_close_their_own_connection_and_nothing_else() -> None:
    outcome = uvloop.run(run(3_000, 7))
    assert outcome.escaped == []
    assert outcome.frames == 3_000
    assert outcome.witnessed == 3
    assert outcome.closed["malformed_frame"] > 500
    assert outcome.closed["oversized_frame"] > 20
    assert 1000 < outcome.dropped <= sum(outcome.closed.values())
    assert outcome.judged["accepted"] > 0
    assert outcome.judged["corrupt"] > 0
    assert outcome.grown_kb < 30_000
