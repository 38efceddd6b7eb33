"""The dangerous schedules of views, S1 to S18 of the design and others that building showed.

Each is one order of events. A schedule only chooses moments; the rules of `cluster.py` hold at every moment
of it. Seeds draw what clients write, and how long each request takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from unittest.mock import patch

from strandline.cluster.view_worker import phases, steps, version_task
from strandline.snapshot.views import spine
from strandline.statemachine.controller.controller_commands import CancelViews, StartViewWorker
from tests.simulation.views.cluster import PROGRAM
from tests.simulation.views.merges import SimMerges
from tests.simulation.views.process import Process
from tests.simulation.views.programs import SALES, TABLES
from tests.simulation.views.stage import NEW, OLD, Stage
from tests.snapshot.views.collisions import four_bit_hashes


def _begun(on: Stage) -> None:
    """A version is live, and clients go on writing."""
    on.sell(20)
    on.go_live(OLD)
    on.keep_selling()


def arrives_between(on: Stage) -> None:
    """S1: records arrive between the state that was filled, and the first records after it."""
    on.sell(20)
    attempt = on.apply(NEW)
    on.kill_at("put state", live=False)
    on.sell(5)
    on.kill_at("commit", live=False, count=2)
    on.sell(5)
    on.until("it is live", lambda: on.is_live(attempt))
    on.keep_selling()
    on.run(1.0)


def after_commit(on: Stage) -> None:
    """S2: the process dies when its outputs are committed, and the state that has them is not stored."""
    _begun(on)
    for _ in range(2):
        on.kill_at("commit", live=True, count=on.rng.randint(1, 4))
        on.run(1.0)


def cleaned_meanwhile(on: Stage) -> None:
    """S3: a row newer than the stored state is superseded while the process is away, and cleaning runs."""
    _changed_while_away(on, {"shop": "d", "price": 4})


def deleted_meanwhile(on: Stage) -> None:
    """S4: the same with a tombstone; then the process is away until its hold has run out."""
    _changed_while_away(on, None)
    if not on.cluster.findings:
        on.forget_holds()
        _changed_while_away(on, None, lost=True)


def _changed_while_away(on: Stage, to: dict[str, object] | None, *, lost: bool = False) -> None:
    if PROGRAM not in on.cluster.machine.view_programs:
        on.go_live(OLD)
    on.change("u", {"shop": "a", "price": 1})
    on.until_state()
    on.change("u", {"shop": "b", "price": 2})
    on.until_written()
    on.run(on.rng.uniform(0.0, 0.2))
    on.cluster.stop_hosting()
    on.kill(live=True)
    if lost:
        on.forget_holds()
    on.change("u", to)
    on.sell(10)
    on.compact()
    on.cluster.host_again()
    on.run(3.0)
    if lost:
        on.cluster.may_stop = True
        on.until("it says that it cannot go on", lambda: "HISTORY_GONE" in on.cluster.program.stopped)


def late_cutover(on: Stage) -> None:
    """S5: the next version's cutover is late; meanwhile the live version is replaced, and goes on."""
    _begun(on)
    attempt = on.apply(NEW)
    on.hold_back("submit CutOverViews", on.rng.uniform(2.0, 6.0))
    proposed, _ = on.moment("submit ViewsPaused", live=True)
    on.until("the live version has paused", proposed)
    on.run(0.3)
    on.kill(live=True)
    on.cluster.delays.clear()  # of the cutovers after it: the live version's patience is short
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(1.0)


def unknown_cutover(on: Stage) -> None:
    """S6: the outcome of the cutover is unknown, its command comes twice, and another node hosts meanwhile.

    The node of the process that proposed it is cut off, and brokers still know the hidden names.
    """
    _begun(on)
    attempt = on.apply(NEW)
    near, _ = on.moment("put state", live=False, count=3)
    on.until("the cutover is near", near)
    on.cluster.lag_seconds = 0.3
    on.cluster.patience = (0.2, 1.0)
    on.cluster.deaf_seconds = 4.0
    on.lose("submit CutOverViews", times=on.rng.randint(1, 3))
    on.repeat("CutOverViews")
    proposed, _ = on.moment("submit CutOverViews", live=False)
    on.until("the cutover is proposed", proposed)
    for process in on.cluster.move():
        on.world.call_later(4.0, process.kill)
    on.cluster.deaf_seconds = 0.0
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(4.0)


def after_cutover(on: Stage) -> None:
    """S7: all processes die right after the cutover; then another version compares what they keep."""
    _begun(on)
    attempt = on.apply({**OLD, "busy": "busy"})
    on.until("it is live", lambda: on.is_live(attempt))
    on.kill_everything()
    on.run(1.0)
    on.go_live(NEW)
    on.run(1.0)


def last_round(on: Stage) -> None:
    """S8: what was filled is retracted in the last round, which ends at the live version's cut."""
    on.sell(20)
    on.change("u", {"shop": "a", "price": 9})
    on.change("v", {"shop": "d", "price": 9})
    on.go_live(OLD)
    attempt = on.apply({**NEW, "dear": "dear"})
    paused, _ = on.moment("submit PauseViews", live=False)
    on.until("it asks for a pause", paused)
    on.change("u", None)
    on.change("v", {"shop": "a", "price": 7})
    on.sell(5)
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(1.0)


def merge_amid_state(on: Stage) -> None:
    """S9: merges of runs end at any moment, also while a state is stored, and processes die there."""
    on.enter(patch.object(spine, "INLINE_ROWS", 4))
    on.enter(patch.object(version_task, "MOST_STATE_SECONDS", 0.5))
    on.cluster.merging = lambda: SimMerges(on.world)
    _begun(on)
    for _ in range(3):
        before = on.rng.random() < 0.5
        on.kill_at(on.rng.choice(("put run", "put state", "commit", "delete")), live=True, before=before)
        on.run(2.5)
    on.go_live(NEW)


def one_hash(on: Stage) -> None:
    """S10: many keys have one hash."""
    on.enter(four_bit_hashes())
    on.sell(40)
    on.go_live({**OLD, "earned": "earned", "dear": "dear"})
    on.keep_selling()
    on.run(1.0)
    on.kill(live=True)
    on.run(2.0)


def twice_in_a_step(on: Stage) -> None:
    """S11: a key changes many times in one step, is deleted and set again."""
    on.cluster.at_once = 40
    on.sell(40)
    on.go_live({**OLD, "dear": "dear"})
    for _ in range(6):
        for item in ("u", "w"):
            for _ in range(on.rng.randint(2, 5)):
                gone = on.rng.random() < 0.4
                on.change(
                    item, None if gone else {"shop": on.rng.choice("ab"), "price": on.rng.randint(1, 9)}
                )
        on.run(0.3)
    on.kill(live=True)
    on.run(1.0)


def great_sums(on: Stage) -> None:
    """S12: 1e20, 1 and -1e20 are added and taken away again, in steps that other processes cut elsewhere."""
    on.change("u", {"shop": "a", "weight": 1e20})
    on.change("v", {"shop": "a", "weight": 1.0})
    on.go_live({"loads": "loads"})
    for item, weight in (("w", -1e20), ("u", 0.5), ("w", 3.0), ("v", 1e16), ("u", 1.0), ("v", 0.25)):
        on.change(item, {"shop": "a", "weight": weight})
        if on.rng.random() < 0.5:
            on.run(0.5)
    on.kill(live=True)
    on.go_live({"loads": "loads", "weights": "weights"})
    on.keep_selling()
    on.run(1.0)


def open_transaction(on: Stage) -> None:
    """S13: a transaction is open on an input while a version is filled and cuts over; later it is aborted."""
    on.sell(10)
    opened = on.begin_transaction()
    on.sell(10)
    on.go_live(OLD)
    attempt = on.apply(NEW)
    on.run(on.rng.uniform(0.0, 0.5))
    other = on.begin_transaction()
    on.sell(5)
    on.until("it is live", lambda: on.is_live(attempt))
    on.cluster.kafka.end(opened, commit=False)
    on.run(0.5)
    on.cluster.kafka.end(other, commit=on.rng.random() < 0.5)
    on.run(0.5)


def retention_passes(on: Stage) -> None:
    """S14: retention deletes what a stored state has not seen, with the process away, or amid a filling."""
    _begun(on)
    on.until_state()
    if on.rng.random() < 0.5:
        on.hold_back("consume", 0.5, live=False)
        attempt = on.apply(NEW)
        on.run(1.0)
        on.trim(SALES)
        on.until("the attempt ends", lambda: on.cluster.program.next is None)
        on.cluster.outcomes["ended by divergence"] += "divergence" in on.cluster.program.ended
        if not on.is_live(attempt):
            on.cluster.may_end = True
        return
    on.cluster.may_stop = True
    on.cluster.stop_hosting()
    on.kill(live=True)
    on.sell(20)
    on.trim(SALES)
    on.cluster.host_again()
    on.until(
        "it says that it cannot go on", lambda: "does not have the records" in on.cluster.program.stopped
    )


def dump_interrupted(on: Stage) -> None:
    """S15: the process dies between parts of the content that it writes, and keys change meanwhile."""
    on.enter(patch.object(phases, "ROWS_OF_A_PART", 4))
    on.sell(30)
    attempt = on.apply({**NEW, "dear": "dear"})
    stored, _ = on.moment("put state", live=False)
    on.until("it is filled", stored)
    on.keep_selling()
    for first in (3, 2):
        on.kill_at("commit", live=False, count=first + on.rng.randint(0, 1), before=on.rng.random() < 0.5)
        on.sell(5)
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(1.0)


def cancel_races(on: Stage) -> None:
    """S16: the operator cancels while the cutover is on its way."""
    _begun(on)
    attempt = on.apply(NEW)
    on.cluster.may_end = True
    proposed, _ = on.moment("put state", live=False, count=3)
    on.hold_back("submit CutOverViews", on.rng.uniform(0.0, 0.1))
    on.until("the cutover is near", proposed)
    on.run(on.rng.uniform(0.0, 0.2))
    on.cluster.submitted(CancelViews(PROGRAM, attempt, "it was cancelled"), lost=False)
    on.run(1.0)
    on.cluster.again(CancelViews(PROGRAM, attempt, "it was cancelled"))
    on.run(2.0)


def filling_fails(on: Stage) -> None:
    """S17: the process that fills dies again and again, then fails for good; others do not notice."""
    _begun(on)
    on.run(1.0)
    live = on.cluster.program.live
    on.cluster.may_end = True
    worker = on.cluster.running(live=True)
    on.change("a divisor", {"shop": "a", "price": 0})
    attempt = on.apply({**OLD, "ratio": "ratio"})
    for _ in range(on.rng.randint(0, 3)):
        on.kill_at("consume", live=False)
    on.until("the attempt ends", lambda: on.cluster.program.next is None)
    on.run(1.0)
    if on.is_live(attempt) or on.cluster.program.stopped or on.cluster.program.live is not live:
        on.cluster.broken("others do not notice", f"the live version: {on.cluster.program}")
    if on.cluster.running(live=True) is not worker:
        on.cluster.broken("others do not notice", "the live version's process ended")


def other_words(on: Stage) -> None:
    """S18: a program comes with other aliases, and its conditions in another order: nothing is filled."""
    on.sell(20)
    on.go_live({"totals": "some"})
    before = on.cluster.outcomes["changes"]
    text = TABLES + (
        "CREATE VIEW totals AS SELECT x.shop, count(1) AS n, sum(x.amount) AS amount FROM sales AS x"
        " WHERE x.item <> 'z' AND 3 < x.amount GROUP BY 1;"
    )
    on.apply({"totals": "some"}, text)
    if on.cluster.program.next is not None or on.cluster.outcomes["changes"] != before:
        on.cluster.broken("nothing is filled", f"attempt {on.cluster.program.next} began")
    on.run(1.0)


def nothing_in_common(on: Stage) -> None:
    """S19: a version has no operator of the one before, but its names; the old process is slow."""
    on.sell(20)
    on.go_live({"totals": "totals"})
    on.keep_selling()
    on.cluster.lag_seconds = 0.5
    on.hold_back("write", on.rng.uniform(0.05, 0.4), live=True, share=0.5)
    on.go_live({"totals": "busy"})
    on.run(2.0)
    on.go_live({"totals": "stock"})
    on.run(2.0)


def dropped(on: Stage) -> None:
    """S20: a program is dropped while it runs and another version is filled; then it is made again."""
    _begun(on)
    on.apply(NEW)
    on.run(on.rng.uniform(0.0, 2.0))
    on.drop()
    on.run(2.0)
    on.look_for_remains()
    on.go_live(NEW)
    on.run(1.0)


def storm(on: Stage) -> None:
    """S21: anything at any time."""
    _begun(on)
    on.weather()
    versions = [OLD, NEW, {"totals": "busy", "goods": "stock"}, {"stock": "stock", "dear": "dear"}]
    for _ in range(8):
        on.anything(versions)
        on.run(on.rng.uniform(0.0, 1.5))
    on.calm()


def cannot_run(on: Stage) -> None:
    """S22: the live version's process cannot run; an operator stops it, and another version cuts over.

    A process of it is out of reach with a transaction open, and comes back after the cutover.
    """
    _begun(on)
    written, seen = on.moment("write", live=True)
    on.until("it writes", written)
    heal = on.live_cannot_run()
    on.out_of_reach(seen[0])
    on.run(on.rng.uniform(0.0, 2.0))
    on.stop_live()
    attempt = on.apply(on.rng.choice((OLD, {"totals": "busy"}, NEW)))
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(on.rng.uniform(0.0, 0.3))
    seen[0].fiber.wake()
    on.run(0.5)
    heal()
    on.run(2.0)


def stopped_meanwhile(on: Stage) -> None:
    """S23: a cutover is late; its pause ends, then the live version is stopped amid a transaction."""
    _begun(on)
    attempt = on.apply({"totals": "busy"})
    paused, _ = on.moment("submit ViewsPaused", live=True)
    on.hold_back("submit CutOverViews", 6.0)
    on.until("the live version has paused", paused)
    on.run(0.3)
    on.kill(live=True)
    written, seen = on.moment("write", live=True)
    on.until("the next process writes", written)
    heal = on.live_cannot_run()
    on.out_of_reach(seen[0])
    on.stop_live()
    on.until("it is live", lambda: on.is_live(attempt))
    seen[0].fiber.wake()
    on.run(0.5)
    heal()
    on.run(2.0)


def late_to_know(on: Stage) -> None:
    """S24: the process that has cut over learns of it late; meanwhile another node's process has gone on."""
    _begun(on)
    attempt = on.apply(NEW)
    near, _ = on.moment("put state", live=False, count=3)
    on.until("the cutover is near", near)
    on.cluster.deaf_seconds = 4.0
    proposed, _ = on.moment("submit CutOverViews", live=False)
    on.until("the cutover is proposed", proposed)
    for process in on.cluster.move():
        on.world.call_later(6.0, process.kill)
    on.cluster.deaf_seconds = 0.0
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(7.0)


def slow_steps(on: Stage) -> None:
    """S25: one of both versions takes long for each record, and the live one has many to take."""
    on.enter(patch.multiple(steps, LEAST_RECORDS=4, STEP_SECONDS=0.5))
    on.cluster.at_once = 1000
    on.sell(20)
    on.go_live(OLD)
    live = on.rng.random() < 0.5
    on.slow_steps(on.rng.uniform(0.03, 0.04), live=live)
    on.keep_selling()
    on.sell(on.rng.randint(200, 300))
    on.run(on.rng.uniform(0.0, 1.0))
    attempt = on.apply({**OLD, "busy": "busy"})
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(1.0)


def late_word(on: Stage) -> None:
    """S26: the word with which a process began comes once more when another fills; so does its cutover."""
    on.sell(20)
    attempt = on.apply(OLD)
    on.hold_back("submit CutOverViews", on.rng.uniform(3.0, 5.0))
    near, seen = on.moment("put state", live=False, count=3)
    on.until("the cutover is near", near)
    on.run(0.2)
    on.keep_selling()
    on.kill(live=False)
    on.run(on.rng.uniform(1.5, 2.5))
    on.cluster.again(StartViewWorker(PROGRAM, attempt, live=False, worker=seen[0].number, before=0))
    on.until("it is live", lambda: on.is_live(attempt))
    on.run(1.0)


def cleaned_at_the_cutover(on: Stage) -> None:
    """S27: inputs are cleaned as soon as a first version ends the holds of its filling, and when it died."""

    def clean(_: Process, done: str) -> float:
        if done == "release":
            on.compact()
        return 0.0

    on.cluster.answer_delays.append(clean)
    on.keep_selling()
    for item in "uvwxyz":
        on.change(item, {"shop": "a", "price": 1})
    on.go_live(OLD)
    for item in "uvwxyz":
        on.change(item, {"shop": on.rng.choice("bc"), "price": on.rng.randint(1, 9)})
    on.run(on.rng.uniform(0.0, 0.4))
    on.kill(live=True)
    for item in "uvwxyz":
        on.change(item, {"shop": "d", "price": 9} if on.rng.random() < 0.5 else None)
    on.compact()
    on.run(3.0)


SCHEDULES: Final[dict[str, Callable[[Stage], None]]] = {
    "S1": arrives_between,
    "S2": after_commit,
    "S3": cleaned_meanwhile,
    "S4": deleted_meanwhile,
    "S5": late_cutover,
    "S6": unknown_cutover,
    "S7": after_cutover,
    "S8": last_round,
    "S9": merge_amid_state,
    "S10": one_hash,
    "S11": twice_in_a_step,
    "S12": great_sums,
    "S13": open_transaction,
    "S14": retention_passes,
    "S15": dump_interrupted,
    "S16": cancel_races,
    "S17": filling_fails,
    "S18": other_words,
    "S19": nothing_in_common,
    "S20": dropped,
    "S21": storm,
    "S22": cannot_run,
    "S23": stopped_meanwhile,
    "S24": late_to_know,
    "S25": slow_steps,
    "S26": late_word,
    "S27": cleaned_at_the_cutover,
}
