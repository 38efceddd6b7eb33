"""Paths about programs of views: what there is, how it goes, and changes.

The text of a program is understood by what sends it, for no node has SQL in its process. A node draws the ids
of topics, and the controller judges the rest.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin import view_metrics
from strandline.node.admin.http import REQUEST_SECONDS, Json, json_body, refusal
from strandline.node.admin.pages import only
from strandline.node.admin.source import AdminSource
from strandline.node.controller.client import Unavailable
from strandline.statemachine.controller.controller_commands import (
    MAX_CUT_BYTES,
    ApplyViews,
    CancelViews,
    DropViews,
    StopViews,
    ViewCommand,
    encode,
)
from strandline.statemachine.controller.view_state import ProgramVersion, ViewProgram
from strandline.statemachine.kafka_errors import Refused
from strandline.statemachine.machine import Corruption

SUBMIT_SECONDS: Final = REQUEST_SECONDS / 2
REPLICAS: Final = 3
CUT_BYTES: Final = MAX_CUT_BYTES * 3 // 4
"""Of a cut, which names each input and has an offset of each partition; in a pause one entry of the
controller's log has it, and digests of operators."""
_PARTITION_BYTES: Final = 12
_TOPIC_BYTES: Final = 6
"""Of a partition's number and offset at most, and of a topic beside its name."""
STOP_ATTEMPTS: Final = 5
"""A process that begins again and again is another one each time."""
_SYSTEM: Final = random.SystemRandom()
_FORM: Final = (
    'a program is {"program": "p", "text": "...", "views": [{"view": "v", "topic": "t", "partitions": 1, '
    '"sink": "digest"}], "inputs": ["topic"]}'
)


class ViewsApi:
    """Answers requests about programs of views."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [
            ("GET", "/api/views", self.programs),
            ("POST", "/api/views", self.apply),
            ("POST", "/api/views/cancel", self.cancel),
            ("POST", "/api/views/stop", self.stop),
            ("POST", "/api/views/drop", self.drop),
        ]

    async def programs(self, request: Request) -> Response:
        """All programs, and what the processes here say."""
        only(request)
        programs = self._source.controller.machine.view_programs
        running = [
            {
                "program": process.name.program,
                "attempt": process.name.attempt,
                "live": process.name.live,
                "process": process.process_id,
                "starts": process.starts,
                "failures": process.failures,
                "failure": process.failure,
                "lag": view_metrics.lag(self._source, process),
                "status": process.status,
            }
            for process in self._source.views.running()
        ]
        return Json(
            {
                "node": self._source.node_id,
                "problem": self._source.views.problem(),
                "programs": [_program(one) for one in programs.values()],
                "running": running,
            }
        )

    async def apply(self, request: Request) -> Response:
        """Begin to fill a program's next version."""
        only(request)
        body = await json_body(request)
        machine = self._source.controller.machine
        replicas = min(REPLICAS, sum(not node.fenced for node in machine.nodes.values()))
        command = _command(body, max(1, replicas), machine.applied_index)
        sinks = [sink for _, _, _, _, sink in command.views]
        reason = self._unfit(command) or self._source.views.no_space(command.program, sinks)
        if reason is not None:
            return refusal(409, reason)
        return await self._submit(command, "attempt", {"program": command.program})

    def _unfit(self, command: ApplyViews) -> str | None:
        """The reason why a program could be filled, and not be kept up to date once it is live."""
        machine = self._source.controller.machine
        program = machine.view_programs.get(command.program)
        own = {view.topic for view in program.live.views} if program and program.live else set[str]()
        if read := sorted(own.intersection(command.inputs)):
            return (
                f"RECURSIVE_VIEW: topic '{read[0]}' is a view's of this program's live version, and would be "
                "gone, or another's, once this version is live: read what that view reads, or apply this "
                "program under another name."
            )
        topics = [topic for name in {*command.inputs} if (topic := machine.topic(name)) is not None]
        count = sum(len(topic.partitions) for topic in topics)
        if _PARTITION_BYTES * count + sum(_TOPIC_BYTES + len(topic.name) for topic in topics) > CUT_BYTES:
            return (
                f"TOO_MANY_PARTITIONS: the inputs have {count:,} partitions together, and a program reads "
                f"some {CUT_BYTES // _PARTITION_BYTES:,} at most, fewer where topics have long names: make "
                "several of it, or read topics of fewer partitions."
            )
        return None

    async def cancel(self, request: Request) -> Response:
        """End the attempt that is under way."""
        only(request)
        program = self._named(await json_body(request))
        if program.next is None:
            return refusal(409, f"no version of program {program.name} is being filled")
        command = CancelViews(program.name, program.next.attempt, "it was cancelled")
        return await self._submit(command, "topics", {"program": program.name})

    async def stop(self, request: Request) -> Response:
        """Stop the live version for good, whatever has become of its process."""
        only(request)
        program = self._named(await json_body(request))
        for _ in range(STOP_ATTEMPTS):
            if program.live is None or program.stopped:
                return refusal(409, f"program {program.name} has no live version that goes on")
            worker = program.live_worker
            command = StopViews(program.name, program.live.attempt, worker, "an operator stopped it")
            answer = await self._submit(command, "version", {"program": program.name})
            now = self._source.controller.machine.view_programs.get(program.name)
            if answer.status_code != 409 or now is None or now.live_worker == worker:
                break
            program = now  # another process has begun meanwhile
        return answer

    async def drop(self, request: Request) -> Response:
        """Forget a program, and delete its views' topics."""
        only(request)
        program = self._named(await json_body(request))
        return await self._submit(
            DropViews(program.name, program.created), "topics", {"program": program.name}
        )

    def _named(self, body: Any) -> ViewProgram:
        if not isinstance(body, dict) or set(body) != {"program"} or not isinstance(body["program"], str):
            raise HTTPException(400, 'the body is {"program": "name"}')
        program = self._source.controller.machine.view_programs.get(body["program"])
        if program is None:
            raise HTTPException(409, f"there is no program {body['program'][:100]!r}")
        return program

    async def _submit(self, command: ViewCommand, name: str, more: Mapping[str, Any]) -> Response:
        result = await self._source.controller.submit(command, SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            done = "it may have been done all the same" if result.unknown else "nothing was done"
            return refusal(503, f"the controller does not answer ({result.reason}), {done}: try again")
        if isinstance(result, Refused):
            return refusal(409, result.message)
        assert isinstance(result, int), result
        return Json({**more, name: result})


def _command(body: Any, replicas: int, made_at: int) -> ApplyViews:
    """The command of a request; HTTPException for anything else."""
    try:
        views = [
            (each["view"], each["topic"], uuid.UUID(int=_SYSTEM.getrandbits(128), version=4).bytes,
             each["partitions"], each["sink"])
            for each in body["views"]
        ]  # fmt: skip
        command = ApplyViews(
            body["program"],
            _SYSTEM.getrandbits(62) + 1,
            body["text"],
            views,
            body["inputs"],
            replicas,
            made_at,
        )
        encode(command)
    except (LookupError, TypeError) as error:
        raise HTTPException(400, f"{_FORM}: {error}") from None
    except Corruption as error:
        raise HTTPException(400, f"{error}: {_FORM}") from None
    return command


def _program(program: ViewProgram) -> dict[str, Any]:
    return {
        "name": program.name,
        "created": program.created,
        "live": None if program.live is None else _version(program.live),
        "next": None if program.next is None else _version(program.next),
        "pauses": program.pauses,
        "stopped": program.stopped or None,
        "ended": program.ended or None,
    }


def _version(version: ProgramVersion) -> dict[str, Any]:
    return {
        "number": version.number,
        "attempt": version.attempt,
        "text": version.text,
        "views": [{"view": view.view, "topic": view.topic, "sink": view.sink} for view in version.views],
        "inputs": [name for name, _ in version.inputs],
    }
