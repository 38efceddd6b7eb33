"""The order of a version's work: the live one follows, the next one is filled and cuts over.

docs/views.md tells the protocol, and statemachine/controller/view_programs.py judges each of its words.
"""

from __future__ import annotations

import logging
from typing import Final

from strandline.cluster.view_worker.fetched import Cut
from strandline.cluster.view_worker.laps import Laps
from strandline.cluster.view_worker.node_link import NodeRefuses
from strandline.cluster.view_worker.reached import pack_reached, unpack_reached
from strandline.cluster.view_worker.steps import CannotRun
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.snapshot.views.sink import Changes
from strandline.statemachine.controller.controller_commands import (
    MAX_CUT_BYTES,
    CutOverViews,
    PauseViews,
    ResumeViews,
    ViewsPaused,
)
from strandline.statemachine.controller.view_state import Pause

log = logging.getLogger(__name__)

NEAR_RECORDS: Final = 2000
"""A step that found no more than this was near the end: the pause will be short."""
STOP_SECONDS: Final = 10.0
"""For the live version to come to the cut that it is asked for. It writes until then, and may be behind."""
PAUSE_SECONDS: Final = 1.0
"""For the next version to come to the cut at which the live one has stopped. Beyond either bound the pause is
ended, and tried again later."""
MOST_PAUSE_SECONDS: Final = 5.0
"""After that, without a step that it takes, the live version ends its pause itself: the next one may stand
still, or wait for its store."""
PAUSES: Final = 5
RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.005
ROWS_OF_A_PART: Final = 100_000
PARTS: Final = 1024


def run(task: VersionTask) -> None:
    """Run until the version is replaced. Raises what a task raises."""
    if not task.live:
        _next(task)
    _live(task)


def _live(task: VersionTask) -> None:
    task.phase = "following"
    task.sinks.follow(all_sinks=True)
    task.tell(phase="following")
    while True:
        # Looked at first: where a cutover has ended a pause by then, `check` knows of it too.
        pause = task.link.known.program.pause
        task.check()
        if pause is None:
            task.go_on()
            continue
        lasting = _Lasting(task, pause.number)
        _stop(task, pause, lasting)
        while lasting.goes_on():
            task.around.sleep(LOOK_SECONDS)  # nothing is committed before this pause has ended


class _Lasting:
    """A pause that the live version is asked for. One that lasts too long it asks to be ended."""

    def __init__(self, task: VersionTask, number: int) -> None:
        self._task = task
        self._number = number
        self.renew()

    def renew(self) -> None:
        """Have it last longer from here on: the live version has gone on within it."""
        self._until = self._task.around.monotonic() + MOST_PAUSE_SECONDS

    def goes_on(self) -> bool:
        """Look whether the pause has not ended. Raises what `check` raises."""
        pause = self._task.link.known.program.pause
        self._task.check()
        if pause is None or pause.number != self._number:
            return False
        if self._task.around.monotonic() > self._until:
            self.end()
            self.renew()
        return True

    def end(self) -> None:
        """Ask for its end: a cutover that comes later is void."""
        task = self._task
        try:
            task.link.submit(ResumeViews(task.program, task.attempt, self._number))
        except NodeRefuses as refused:
            log.warning("a pause of %s lasts: %s; it is tried again", task.program, refused)


def _stop(task: VersionTask, pause: Pause, lasting: _Lasting) -> None:
    """Come to the cut that is asked for, and say so; or not, where the pause is over before that."""
    # The next version may read topics that this one does not.
    wanted = _shared(task, unpack_reached(pause.wanted)[0])
    said = dict[str, Changes]()
    # What comes meanwhile is not waited for, and the last step is committed with the cut.
    while not task.inputs.at(wanted):
        if said:
            task.commit(said)
            lasting.renew()
            said = {}
        if not lasting.goes_on():
            return  # the others are not to wait for a partition of which nothing comes
        said = task.take(wanted)
    if said or task.committed != task.inputs.position:
        task.commit(said)
    reached = pack_reached(task.cut(), task.digests())
    if len(reached) > MAX_CUT_BYTES:
        log.warning(
            "a pause of %s ends: %d bytes of its cut are too many to be told", task.program, len(reached)
        )
        lasting.end()
        return
    try:
        task.link.submit(ViewsPaused(task.program, task.attempt, task.worker, pause.number, reached))
    except NodeRefuses as refused:
        if not refused.late:
            raise


def _next(task: VersionTask) -> None:
    # Also where a process died while it wrote the content: nothing keeps what these views have said.
    task.sinks.follow(all_sinks=False)
    if task.phase != "following":
        task.around.stand_back()
        if task.phase == "filling":
            _fill(task)
        _dump(task)
        task.around.step_forward()
    task.sinks.follow(all_sinks=True)
    task.tell(phase="following")
    for _ in range(PAUSES):
        _come_near(task)
        # The pause has to store no more than what changes from here on, however large the state is.
        task.store_state()
        task.make_ready()
        _come_near(task)
        laps = Laps(task.around.monotonic)
        if _cut_over(task, laps):
            task.go_live()
            laps.end("begin")
            # Readers saw nothing new meanwhile.
            task.tell(pause_seconds=laps.seconds, pause_parts=laps.parts)
            task.go_on()
            task.settle()
            return
        end = task.around.monotonic() + RETRY_SECONDS
        while task.around.monotonic() < end:
            task.check()
            task.go_on()
    raise CannotRun(_late(task.program, live_stopped="stop" in laps.parts))


def _late(program: str, *, live_stopped: bool) -> str:
    """The cause and the cure where no pause was long enough, by what became of the last one."""
    if live_stopped:
        return (
            f"this version did not come to the cut at which the live one had stopped within "
            f"{PAUSE_SECONDS:g} s, or did not store its state before the pause ended, {PAUSES} times: the "
            "live version runs; apply this one again when less is written, or when its node and the store "
            "have less to do"
        )
    return (
        f"the live version did not come to a common cut within {STOP_SECONDS:g} s, {PAUSES} times: apply "
        f"this one again when that one is no longer behind (`strandline view status {program}`); where it "
        f"cannot keep up, or run, `strandline view stop {program}`, and apply this version again"
    )


def _come_near(task: VersionTask) -> None:
    """Go on until little is left to read."""
    while task.go_on() > NEAR_RECORDS or task.inputs.full:
        task.check()


def _fill(task: VersionTask) -> None:
    """Read everything there is, in silence but for views whose rows are kept nowhere else."""
    task.tell(phase="filling")
    while task.inputs.ended != set(task.inputs.position):
        task.check()
        task.go_on()
    task.phase = "dumping"
    task.store_state()


def _dump(task: VersionTask) -> None:
    """Write the content as it is in the stored state: a process that dies leaves the rest to the next one."""
    task.tell(phase="dumping")
    parts = min(PARTS, 1 + sum(task.cut().values()) // ROWS_OF_A_PART)
    for _ in task.dump(parts):
        task.check()
    task.phase = "following"
    task.commit()


def _cut_over(task: VersionTask, laps: Laps) -> bool:
    """Come to the live version's cut, and take its place; False when that took too long."""
    program = task.link.known.program
    number, said = 0, dict[str, Changes]()
    if program.live is not None and program.stopped:
        task.shut_out_live()
    elif program.live is not None:
        wanted = pack_reached(task.cut(), {})
        if len(pack_reached(task.cut(), task.digests())) > MAX_CUT_BYTES:
            raise CannotRun(
                f"TOO_MANY_PARTITIONS: the inputs have {len(task.cut()):,} partitions, more than a pause can "
                f"have offsets of: make several programs of it, or `strandline view stop {task.program}` and "
                "apply this version again"
            )
        number = task.link.submit(PauseViews(task.program, task.attempt, task.worker, wanted))
        reached = _reached(task, number, laps.began + STOP_SECONDS)
        if reached is None:
            task.link.submit(ResumeViews(task.program, task.attempt, number))
            return False
        laps.end("stop")
        until = task.around.monotonic() + PAUSE_SECONDS
        there, digests = unpack_reached(reached)
        if not _same_partitions(task.cut(), there):
            # A topic has grown, and one of the two has not begun again yet: what they keep differs till then.
            task.link.submit(ResumeViews(task.program, task.attempt, number))
            return False
        # Other topics stay where they are: no view that is kept reads them.
        cut = _shared(task, there)
        while not task.inputs.at(cut):
            if said:
                task.commit(said)
            if task.around.monotonic() > until:
                task.link.submit(ResumeViews(task.program, task.attempt, number))
                return False
            task.check()
            said = task.take(cut)
        if any(task.inputs.position[place] != offset for place, offset in cut.items()):
            raise CannotRun("divergence: the live version stopped below the cut that it was asked for")
        own = task.digests()
        for name in sorted(own.keys() & digests.keys()):
            if own[name] != digests[name]:
                raise CannotRun(
                    f"divergence: operator {name[:12]} keeps something else than the live version's: most "
                    "often retention or cleaning has taken records of an append table that the live version "
                    f"had read. To go on with those that are there, `strandline view stop {task.program}`, "
                    "and apply this version again"
                )
    laps.end("catch up")
    # What the last step says goes with the state in one transaction.
    task.name_state(said)
    laps.end("store")
    command = CutOverViews(task.program, task.attempt, task.worker, number, task.state)
    while True:
        # Nothing is written before the outcome is known: the topics may be readers' by now.
        try:
            task.link.submit(command)
        except NodeRefuses as refused:
            if refused.late:
                return False
        if task.has_cut_over():
            laps.end("cut over")
            return True
        task.around.sleep(LOOK_SECONDS)
        task.present_version()


def _same_partitions(own: Cut, there: Cut) -> bool:
    """Whether two cuts have the same partitions of the topics that they have in common."""
    common = {topic for topic, _ in own} & {topic for topic, _ in there}
    return all(place[0] not in common for place in own.keys() ^ there.keys())


def _shared(task: VersionTask, cut: Cut) -> Cut:
    return {place: offset for place, offset in cut.items() if place in task.inputs.position}


def _reached(task: VersionTask, number: int, until: float) -> bytes | None:
    """The cut at which the live version stopped; None when the pause ended, or takes too long."""
    while task.around.monotonic() < until:
        task.present_version()
        pause = task.link.known.program.pause
        if pause is None or pause.number != number:
            return None
        if pause.reached is not None:
            return pause.reached
        task.around.sleep(LOOK_SECONDS)
    return None
