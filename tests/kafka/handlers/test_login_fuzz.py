"""A short run of the fuzzer of logins; `python -m tests.kafka.handlers.login_fuzz` is the long one."""

from __future__ import annotations

import uvloop

from tests.kafka.handlers.login_fuzz import run


def test_strangers_end_their_own_connection_and_nothing_else() -> None:
    outcome = uvloop.run(run(800, 7))
    assert outcome.let_in == []
    assert not outcome.still_open
    assert outcome.connections == 800
    assert len(outcome.kinds) == 12
    assert outcome.honest == 3
    assert outcome.slowest < 10
    assert outcome.closed["handler_error"] == 0
    assert outcome.kinds["token"] > 40
    for reason in ("not_logged_in", "tls_handshake", "oversized_frame"):
        assert outcome.closed[reason] > 30, outcome.closed
    assert outcome.grown_kb < 60_000
