"""The process of a version of a program of views. `python -m strandline.cluster.view_worker.process`.

A node starts it and tells it what to run. It ends with the node, when another process has its place, or when
something failed that a new process may not meet; exit code 0 in the first two cases.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import sys
from pathlib import Path

from confluent_kafka import KafkaException

from strandline.cluster.view_worker import phases
from strandline.cluster.view_worker.fetched import InputGone
from strandline.cluster.view_worker.node_link import HoldLost, NodeLink, NodeRefuses
from strandline.cluster.view_worker.steps import CannotRun
from strandline.cluster.view_worker.surroundings import REAL, Surroundings
from strandline.cluster.view_worker.version_task import Replaced, VersionTask
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.store import StoreError
from strandline.snapshot.views.errors import RunDamaged, ViewError
from strandline.snapshot.views.stored_state import StateDamaged
from strandline.statemachine.controller.controller_commands import MAX_REASON, CancelViews, StopViews
from strandline.statemachine.views.refusals import Refused

log = logging.getLogger(__name__)


def main() -> int:
    """Run what the node says; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    link = NodeLink()
    return run(link, random.SystemRandom().getrandbits(62) + 1, REAL)


def run(link: NodeLink, worker: int, around: Surroundings) -> int:
    """Run what the node says as process number `worker`; the exit code."""
    url, options, owner, folder, way, attempt, live, memory_limit = link.started()
    name = link.known.program.name
    place = StorePlace(url, options, owner)
    task = None
    try:
        task = VersionTask(
            link,
            place,
            Path(folder),
            way,
            attempt,
            worker,
            live=live,
            around=around,
            memory_limit=memory_limit,
        )
        phases.run(task)
    except Replaced:
        return 0
    except NodeRefuses as refused:
        log.warning("%s", refused)
        if refused.late:
            return 0
        link.tell({"phase": "ended", "failure": str(refused)[:MAX_REASON]})
        return 1
    except (CannotRun, HoldLost, InputGone, Refused, ViewError) as error:
        if isinstance(error, RunDamaged):
            log.error("%s", error)
        reason = str(error)[:MAX_REASON]
        is_live = live if task is None else task.live
        command = StopViews(name, attempt, worker, reason) if is_live else CancelViews(name, attempt, reason)
        return _say(link, command)
    except (KafkaException, StoreError, StateDamaged, OSError) as error:
        told = str(error)
        if _no_space(error):
            if isinstance(error, OSError):
                # A write to a file that is open names none, and a store says which of its objects it was.
                told = f"{error.strerror}: the disk of {error.filename or folder}"
            told = f"NO_SPACE: {told}: make room there"
            if not (live if task is None else task.live):
                # Another process would fill what is left of the disk, which others need.
                reason = f"{told}, then apply the program again"
                return _say(link, CancelViews(name, attempt, reason[:MAX_REASON]))
        log.warning("the version's process ends, and another will go on: %s", told)
        link.tell({"phase": "ended", "failure": told[:MAX_REASON]})
        return 1
    return 0


def _no_space(error: BaseException | None) -> bool:
    """Whether a full disk is the cause of an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def _say(link: NodeLink, command: StopViews | CancelViews) -> int:
    log.error("the version cannot go on: %s", command.reason)
    try:
        link.submit(command)
    except NodeRefuses as refused:
        log.warning("%s", refused)
        if refused.late and isinstance(command, CancelViews):
            return 0
        # A process that could not begin has no say, as of a release that does not know what the program
        # needs: a node of another release may go on.
        link.tell({"phase": "ended", "failure": command.reason})
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # The thread that reads from the node holds a lock that an orderly end would wait for.
    os._exit(code)
