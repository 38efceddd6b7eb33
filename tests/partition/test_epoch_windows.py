"""The measurement of docs/fence.md: a window that keeps the previous epoch refuses less."""

from __future__ import annotations

from tests.programs.bench.epoch_windows import run


def test_the_previous_epoch_in_the_window_saves_uploads_that_were_in_flight() -> None:
    one, two = run(0.1, 1, seconds=3.0), run(0.1, 2, seconds=3.0)
    assert one.offered > 1000
    assert one.refused > 50
    assert two.refused < one.refused / 10
    assert two.appended > one.appended
