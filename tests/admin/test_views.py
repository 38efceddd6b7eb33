"""/api/views: programs as the controller has them, and what a request must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from strandline.node.admin import views
from strandline.node.admin.view_metrics import STATES
from strandline.statemachine.controller.controller_commands import CutOverViews, StartViewWorker
from strandline.statemachine.controller.view_state import is_hidden
from tests.admin.answers import check, refused, samples, schema_of
from tests.admin.small_node import Answer, Client, small_node, version_that_runs
from tests.raft.mesh.mesh_nodes import on_loop

VIEWS = "/api/views"
VIEW = {"view": "v", "topic": "out", "partitions": 2, "sink": "a" * 64}
PROGRAM = {"program": "p", "text": "CREATE …", "views": [VIEW], "inputs": ["orders"]}


async def post(client: Client, path: str, body: Any) -> Answer:
    return await client.ask("POST", path, json.dumps(body).encode())


@on_loop
async def test_a_program_begins_is_told_of_is_cancelled_and_dropped(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        answer = await post(client, VIEWS, PROGRAM)
        assert answer.status == 200, answer
        attempt = answer.json()["attempt"]
        told = await client.get(VIEWS)
        check(told, schema_of(VIEWS), VIEWS)
        [program] = told["programs"]
        assert (program["name"], program["live"], program["next"]["attempt"]) == ("p", None, attempt)
        assert program["next"]["inputs"] == ["orders"]
        assert told["problem"] == "the store is in memory"
        assert any(is_hidden(topic.name) for topic in node.machine.topics)
        assert "BOOTSTRAP_IN_PROGRESS" in refused(await post(client, VIEWS, PROGRAM), 409)
        assert (await post(client, f"{VIEWS}/cancel", {"program": "p"})).json()["topics"] == 1
        refused(await post(client, f"{VIEWS}/cancel", {"program": "p"}), 409)
        assert (await post(client, f"{VIEWS}/drop", {"program": "p"})).status == 200
        refused(await post(client, f"{VIEWS}/drop", {"program": "p"}), 409)
        assert not any(is_hidden(topic.name) for topic in node.machine.topics)


@on_loop
async def test_what_is_no_program_is_refused_and_the_controllers_refusals_are_told(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        wrong: list[Any] = [
            [], {}, {**PROGRAM, "views": []}, {**PROGRAM, "views": [{**VIEW, "partitions": 0}]},
            {**PROGRAM, "views": [{}]}, {**PROGRAM, "text": 5}, {**PROGRAM, "text": "x" * 50_000},
            {**PROGRAM, "program": ""}, {**PROGRAM, "inputs": 3},
        ]  # fmt: skip
        for body in wrong:
            assert "a program is" in refused(await post(client, VIEWS, body), 400)
        for path in ("cancel", "stop", "drop"):
            refused(await post(client, f"{VIEWS}/{path}", {"name": "p"}), 400)
        assert "TOPIC_MISSING" in refused(await post(client, VIEWS, {**PROGRAM, "inputs": ["nowhere"]}), 409)
        topics = {topic.name for topic in node.machine.topics}
        node.views.full = "NO_SPACE: a version needs 9 bytes"
        assert "NO_SPACE" in refused(await post(client, VIEWS, PROGRAM), 409)
        assert {topic.name for topic in node.machine.topics} == topics
        assert not node.machine.view_programs


@on_loop
async def test_what_could_not_go_on_once_it_is_live_is_refused(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        attempt = (await post(client, VIEWS, PROGRAM)).json()["attempt"]
        for command in (StartViewWorker("p", attempt, False, 70), CutOverViews("p", attempt, 70, 0, "state")):
            assert isinstance(await node.controller.submit(command, 10.0), int)
        # The cutover to this version would delete the topic that it reads.
        another = {**PROGRAM, "views": [{**VIEW, "view": "w", "topic": "more"}], "inputs": ["orders", "out"]}
        assert "RECURSIVE_VIEW: topic 'out'" in refused(await post(client, VIEWS, another), 409)
        assert (await post(client, VIEWS, {**another, "program": "q"})).status == 200
        orders = node.machine.topic("orders")
        assert orders is not None
        third = {**PROGRAM, "program": "r", "views": [{**VIEW, "topic": "third"}], "inputs": ["orders"] * 9}
        fits = 12 * len(orders.partitions) + 12
        with patch.object(views, "CUT_BYTES", fits - 1):
            answer = refused(await post(client, VIEWS, third), 409)
            assert f"TOO_MANY_PARTITIONS: the inputs have {len(orders.partitions)} partitions" in answer
        with patch.object(views, "CUT_BYTES", fits):
            assert (await post(client, VIEWS, third)).status == 200


@on_loop
async def test_a_version_that_runs_is_in_the_metrics_and_in_the_answer(tmp_path: Path) -> None:
    said = {"phase": "following", "records": 9, "written": 4, "skipped": 1, "rows": 6, "bytes": 700}
    async with small_node(tmp_path) as (node, _, client):
        ends = [one.machine.last_stable_offset for one in node.partitions]
        cut = {f"{one.topic}-{one.number}": one.machine.start_offset for one in node.partitions[:2]}
        node.views.processes = [version_that_runs({**said, "cut": cut})]
        assert (await post(client, VIEWS, PROGRAM)).status == 200
        told = await client.get(VIEWS)
        check(told, schema_of(VIEWS), VIEWS)
        [running] = told["running"]
        assert (running["failures"], running["failure"], running["lag"]) == (2, "it ended", sum(ends[:2]))
        found = samples((await client.ask("GET", "/metrics")).body.decode())
        of = (("program", "p"), ("version", "live"))
        expected = {
            "process_starts_total": 3, "process_failures_total": 2, "records_total": 9, "changes_total": 4,
            "skipped_records_total": 1, "rows": 6, "bytes": 700, "lag": sum(ends[:2]),
        }  # fmt: skip
        assert {name: found[f"strandline_view_{name}", of] for name in expected} == expected
        assert found["strandline_view_phase", (("phase", "following"), *of)] == 1
        states = {state: found["strandline_view_programs", (("state", state),)] for state in STATES}
        assert states == {"live": 0, "filled": 1, "stopped": 0}

        # The lag is not known where an input has no replica here, nor before the process has said a word.
        unknown: list[dict[str, Any]] = [{"cut": {**cut, "elsewhere-0": 1}}, {"cut": {}}, {}]
        for status in unknown:
            node.views.processes = [version_that_runs(status)]
            assert (await client.get(VIEWS))["running"][0]["lag"] is None
            found = samples((await client.ask("GET", "/metrics")).body.decode())
            assert ("strandline_view_lag", of) not in found
            assert found["strandline_view_records_total", of] == 0
        behind = dict.fromkeys(cut, 1 << 40)
        node.views.processes = [version_that_runs({"cut": behind})]
        assert (await client.get(VIEWS))["running"][0]["lag"] == 0, "a replica may be behind the process"


@on_loop
async def test_a_live_version_is_stopped_whichever_process_runs_it_by_then(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        assert "no live version" in refused(await _stopped(client, apply=True), 409)
        [version] = node.machine.view_programs["p"].versions()
        attempt = version.attempt
        for command in (StartViewWorker("p", attempt, False, 70), CutOverViews("p", attempt, 70, 0, "state")):
            assert isinstance(await node.controller.submit(command, 10.0), int)
        submit, begun = node.controller.submit, iter((60, 61))

        async def another_begins(command: Any, seconds: float) -> Any:
            for worker in begun:
                assert isinstance(await submit(StartViewWorker("p", attempt, True, worker), seconds), int)
                break
            return await submit(command, seconds)

        with patch.object(node.controller, "submit", another_begins):
            answer = await _stopped(client)
        assert answer.json() == {"program": "p", "version": 1}
        program = node.machine.view_programs["p"]
        assert (program.stopped, program.live_worker) == ("an operator stopped it", 61)
        assert "no live version" in refused(await _stopped(client), 409)


async def _stopped(client: Client, *, apply: bool = False) -> Answer:
    if apply:
        assert (await post(client, VIEWS, PROGRAM)).status == 200
    return await post(client, f"{VIEWS}/stop", {"program": "p"})
