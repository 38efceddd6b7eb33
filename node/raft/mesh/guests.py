"""One question of a process that is no peer: a machine that is to join, or a lost member, asks any member.

The guest has proved the cluster secret, as a peer has. It is told one answer and then sent away: nothing of
it reaches a Raft group, and its node id takes no place from a peer (docs/mesh.md, "Guests").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgpack

from strandline.node.raft.data_folder import Standing
from strandline.node.raft.mesh.frames import data_frame
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.problems import MeshProblem, MeshReason

log = logging.getLogger(__name__)

MOST_GUESTS: Final = 16
"""At a time; one more is sent away and comes again."""
GUEST_SECONDS: Final = 15.0
"""From the proof to the answer: longer than a command takes to be committed."""

Answering = Callable[[int, Standing, Any], Awaitable[Any]]
"""Gives the answer to a question of the node with that id and data folder, of msgpack's types."""


class SeedFailed(Exception):
    """A seed gave no answer; `str()` is half a line with cause and cure."""


class Guests:
    """The guests of one node. Everything belongs on `loop`."""

    answering: Answering | None = None
    """Set once this node can answer; until then guests are sent away."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[MeshProblem], None]) -> None:
        self._loop = loop
        self._report = report
        self._here: dict[Link, asyncio.TimerHandle] = {}
        self._asked: dict[Link, asyncio.Task[None]] = {}

    def come(self, link: Link) -> None:
        """Welcome a guest that has proved the secret, if there is room."""
        link.hand_to(self)
        has_room = self.answering is not None and len(self._here) < MOST_GUESTS
        if has_room:
            self._here[link] = self._loop.call_later(GUEST_SECONDS, link.close)
        link.admit()
        if not has_room:
            link.close()

    # What links tell, from the proof on.

    def link_opened(self, link: Link) -> None:
        raise AssertionError("the mesh opens links")

    def link_proved(self, link: Link) -> None:
        raise AssertionError("that was before")

    def link_refused(self, link: Link) -> str | None:
        return None

    def link_up(self, link: Link) -> None:
        """There is nothing to say before the question."""

    def link_pong(self, link: Link, token: int) -> None:
        """No guest is pinged."""

    def link_problem(self, problem: MeshProblem) -> None:
        self._report(problem)

    def link_data(self, link: Link, payload: Any) -> None:
        """Take the question; a second one ends the connection."""
        answering = self.answering
        if answering is None or link in self._asked:
            link.close()
            return
        task = self._asked[link] = self._loop.create_task(self._answer(link, answering, payload))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def link_down(self, link: Link) -> None:
        """Forget a guest whose connection has ended."""
        timer, task = self._here.pop(link, None), self._asked.pop(link, None)
        if timer is not None:
            timer.cancel()
        if task is not None:
            task.cancel()

    async def _answer(self, link: Link, answering: Answering, question: Any) -> None:
        try:
            answer = await answering(link.peer, link.standing, question)
            link.write(data_frame(msgpack.packb(answer)))
        except Exception:
            log.exception("a question of node %d, which is no member, was not answered", link.peer)
        self._asked.pop(link, None)
        link.close()


class Asking:
    """The owner of a link to a seed: it sends one question, and takes the answer."""

    def __init__(self, question: Any, *, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()
        """The answer; SeedFailed where there is none."""
        self._question = data_frame(msgpack.packb(question))

    def link_opened(self, link: Link) -> None:
        pass

    def link_proved(self, link: Link) -> None:
        raise AssertionError("this side dials")

    def link_refused(self, link: Link) -> str | None:
        return None

    def link_up(self, link: Link) -> None:
        if not link.write(self._question):
            link.close()

    def link_down(self, link: Link) -> None:
        if not self.answer.done():
            self.answer.set_exception(SeedFailed("it ended the connection: it is busy, or no member itself"))

    def link_data(self, link: Link, payload: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(payload)
        link.close()

    def link_pong(self, link: Link, token: int) -> None:
        pass

    def link_problem(self, problem: MeshProblem) -> None:
        if not self.answer.done():
            self.answer.set_exception(SeedFailed(_about_this_side(problem)))


def _about_this_side(problem: MeshProblem) -> str:
    if problem.reason is MeshReason.OWN_NODE_ID:
        return (
            "it has this node's own id, and runs: give this node a node.id that no other has, or had (if it"
            " is this node itself, leave it out of cluster.seeds)"
        )
    if problem.reason is MeshReason.OTHER_NODE:
        return "its release adds no nodes: upgrade it first"
    return problem.text
