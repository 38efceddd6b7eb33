"""The HTTP API: what is answered, that it is what the description says, and what hostile input gets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from starlette.routing import Route

from strandline.node.admin import http
from strandline.node.admin.api import AdminApi
from strandline.node.admin.loop_lag import LoopLag
from strandline.node.admin.metrics import Metrics
from strandline.node.admin.openapi import OPENAPI
from strandline.node.admin.pages import MAX_PAGE
from strandline.node.admin.server import AdminListenError, AdminServer
from strandline.node.checkpoints.checkpoint_coordinator import CheckpointUnderWay, UnknownTopic
from strandline.node.level_zero.batcher import Batcher, Stored
from strandline.node.level_zero.money_budget import MoneyBudget
from strandline.node.objectstore.store import StoreError
from strandline.node.raft.mesh.strangers import STRANGER_SECONDS, Stranger
from strandline.node.raft.ticker import TickWatch
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.balance_plan import Balance, Step
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL, RemoveNode
from strandline.statemachine.controller.controller_state import REMOVED, NodeFolder
from strandline.statemachine.groups.group_state import Group
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.groups.offsets import Offsets
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from strandline.statemachine.partition.epoch_window import EpochStatus, StaleClusterEpoch
from tests.admin.answers import check, refused, samples, schema_of
from tests.admin.compacted import local_log
from tests.admin.small_node import NODE, SmallNode, parsed, small_node, until
from tests.admin.ticks import TICK_SECONDS
from tests.raft.mesh.mesh_nodes import on_loop


@on_loop
async def test_the_description_has_exactly_the_paths_that_are_answered(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, server, client):
        api = AdminApi(node, Metrics(node, server.lag, Counter()))
        routes = [route for route in api.app().routes if isinstance(route, Route)]
        answered = sorted(
            (method.lower(), route.path)
            for route in routes
            for method in route.methods or ()
            if method != "HEAD"
        )
        described = sorted((method, path) for path, item in OPENAPI["paths"].items() for method in item)
        assert answered == described
        assert await client.get("/api/openapi.json") == OPENAPI


@on_loop
async def test_every_answer_is_what_the_description_says(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        result = await node.batcher.stage(bytes(16), 0, b"x" * 100)
        assert isinstance(result, Stored)
        fence = node.partitions[0].fence
        fence.counters.granted(EpochStatus.NEW)
        fence.counters.rejected(StaleClusterEpoch(1, 4, 5))
        for path in (
            "/health",
            "/api/cluster",
            "/api/nodes",
            "/api/leaderships",
            "/api/topics",
            "/api/partitions",
            "/api/groups",
            "/api/gc",
            "/api/gc/partitions",
            "/api/gc/dry-run",
        ):
            check(await client.get(path), schema_of(path), path)
        check(await client.get("/api/topics/orders"), schema_of("/api/topics/{name}"))

        nodes = (await client.get("/api/nodes"))["nodes"]
        assert [(n["node"], n["leads"], n["replicas"], n["connected"]) for n in nodes] == [(NODE, 4, 4, True)]
        assert (await client.get("/api/cluster"))["controller"]["leader"] == NODE
        partition = (await client.get("/api/partitions?topic=orders&limit=1"))["partitions"][0]
        assert partition["window"] == {"term": 1, "oldest": 1, "newest": 1, "size": 1}
        assert partition["fences"]["new_epoch"] == 1
        assert partition["fences"]["last_gap"] == 3
        assert partition["held_back_by"] == "idle"
        node.partitions[0].fence.window = None
        check(await client.get("/api/partitions"), schema_of("/api/partitions"))


@on_loop
async def test_coordinators_are_told_apart_from_partitions(tmp_path: Path) -> None:
    topics = {"orders": 2, GROUPS_TOPIC: 3, TRANSACTIONS_TOPIC: 2}
    async with small_node(tmp_path, topics) as (node, _, client):
        node.coordinators[0].leads = False
        machine = node.coordinators[1].machine
        assert isinstance(machine, GroupsMachine)
        machine.groups["g"] = Group(None, Offsets())
        path = "/api/coordinators"
        answer = await client.get(path)
        check(answer, schema_of(path), path)
        rows = answer["coordinators"]
        assert [(row["topic"], row["partition"], row["kind"], row["leads"], row["keys"]) for row in rows] == [
            (GROUPS_TOPIC, 0, "groups", False, 0),
            (GROUPS_TOPIC, 1, "groups", True, 1),
            (GROUPS_TOPIC, 2, "groups", True, 0),
            (TRANSACTIONS_TOPIC, 0, "transactions", True, 0),
            (TRANSACTIONS_TOPIC, 1, "transactions", True, 0),
        ]
        assert {row["leader"] for row in rows} == {NODE}
        first = await client.get(f"{path}?limit=3")
        assert [row["group"] for row in first["coordinators"]] == [3, 4, 5]
        rest = await client.get(f"{path}?limit=3&after={first['next']}")
        assert [row["group"] for row in rest["coordinators"]] == [6, 7]
        assert rest["next"] is None
        partitions = (await client.get("/api/partitions"))["partitions"]
        assert [row["topic"] for row in partitions] == ["orders"] * 2
        collectable = (await client.get("/api/gc/partitions"))["partitions"]
        assert [row["topic"] for row in collectable] == ["orders"] * 2
        kinds = [row["kind"] for row in (await client.get("/api/groups"))["groups"]]
        assert kinds == ["controller", *["partition"] * 2, *["groups"] * 3, *["transactions"] * 2]
        page = (await client.ask("GET", "/metrics")).body.decode()
        for sample in (
            'strandline_coordinator_replicas{kind="groups",role="leader"} 2',
            'strandline_coordinator_replicas{kind="groups",role="follower"} 1',
            'strandline_coordinator_replicas{kind="transactions",role="leader"} 2',
            'strandline_coordinator_replicas{kind="transactions",role="follower"} 0',
            'strandline_coordinator_keys{kind="groups"} 1',
            'strandline_coordinator_keys{kind="transactions"} 0',
        ):
            assert sample in page.splitlines()


@on_loop
async def test_pages_together_are_everything_once(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 5, "b": 4, "c": 1}) as (_, _, client):
        for path, key, of in (
            ("/api/partitions", "group", 10),
            ("/api/groups", "group", 11),
            ("/api/topics", "name", 3),
        ):
            seen, after = [], ""
            while True:
                page = await client.get(f"{path}?limit=2{after}")
                rows = page[path.rsplit("/", 1)[1]]
                assert rows, "a page that need not have been asked for"
                seen += [row[key] for row in rows]
                if page["next"] is None:
                    break
                assert len(rows) == 2
                assert page["next"] == seen[-1]
                after = f"&after={page['next']}"
            assert len(seen) == of
            assert seen == sorted(set(seen))
        assert [p["topic"] for p in (await client.get("/api/partitions?topic=b"))["partitions"]] == ["b"] * 4


@on_loop
async def test_health_names_what_is_wrong_the_worst_first(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        assert (await client.get("/health")) == {"status": "healthy", "node": NODE, "problems": []}
        node.registered = False
        groups = node.host.groups
        node.host.guard(groups[3], lambda: (_ for _ in ()).throw(ValueError("broken")).__next__())
        node.host.remove_group(2)
        answer = await client.ask("GET", "/health")
        assert answer.status == 503
        check(answer.json(), schema_of("/health", code="503"))
        told = [(p["reason"], p["count"], p["groups"]) for p in answer.json()["problems"]]
        assert told == [
            ("groups_failed", 1, [3]),
            ("not_registered", 1, []),
            ("groups_missing", 1, [2]),
            ("groups_leaderless", 1, [3]),
        ]
        failed = (await client.get("/api/groups?after=2&limit=1"))["groups"][0]
        assert failed["failure"] == "broken"


@on_loop
async def test_a_disk_that_is_full_is_told_with_its_file_and_one_that_hangs_with_the_time(
    tmp_path: Path,
) -> None:
    async with small_node(tmp_path) as (node, _, client):
        wal = node.host.wal
        with patch.object(node.host, "disk_stalled", lambda: True):
            wal.full = OSError(errno.ENOSPC, "No space left on device", "/data/wal/wal-1.log")
            full = (await client.ask("GET", "/health")).json()["problems"][0]
            wal.full, wal.stalled_since = None, node.host.loop.time() - 7
            slow = (await client.ask("GET", "/health")).json()["problems"][0]
        wal.stalled_since = None
        assert full["reason"] == slow["reason"] == "log_stalled"
        assert "'/data/wal/wal-1.log': the disk is full: free space" in full["detail"]
        assert "a write takes 7 s already: check the disk" in slow["detail"]


@on_loop
async def test_a_log_that_was_deleted_under_the_node_is_told(tmp_path: Path) -> None:
    """The node goes on as before, and all that it acknowledges ends with its process."""
    async with small_node(tmp_path) as (node, _, client):
        folder = node.host.settings.folder
        assert (await client.get("/health"))["problems"] == []
        await asyncio.to_thread(shutil.rmtree, f"{folder}/wal")
        (found,) = (await client.ask("GET", "/health")).json()["problems"]
        assert (found["reason"], found["detail"]) == ("log_deleted", f"{folder}/wal is deleted")


@on_loop
async def test_a_storage_that_is_gone_is_unhealthy_with_its_name_the_cause_and_the_cure(
    tmp_path: Path,
) -> None:
    async with small_node(tmp_path) as (node, _, client):
        (tmp_path / "objects").rename(tmp_path / "away")
        failed = await node.batcher.stage(bytes(16), 0, b"x" * 100)
        assert isinstance(failed, Refusal)
        assert failed.message is not None
        assert "correct storage.url" in failed.message, "producers are told the cure, too"
        answer = await client.ask("GET", "/health")
        assert answer.status == 503
        check(answer.json(), schema_of("/health", code="503"))
        (problem,) = answer.json()["problems"]
        assert problem["reason"] == "storage_failing"
        for part in (str(tmp_path / "objects"), "puts fail", "the store's folder is missing", "storage.url"):
            assert part in problem["detail"]
        page = samples((await client.ask("GET", "/metrics")).body.decode())
        assert page["strandline_healthy", ()] == 0
        assert page["strandline_problems", (("reason", "storage_failing"),)] == 1
        assert page["strandline_store_failing", (("kind", "put"),)] == 1
        assert page["strandline_store_failed_operations_total", (("kind", "put"),)] == 1
        with pytest.raises(StoreError, match="folder is missing"):
            await node.store.list("health/", "", 1)
        (tmp_path / "away").rename(tmp_path / "objects")
        assert await node.store.list("health/", "", 1) == []


@on_loop
async def test_a_node_that_does_its_part_in_a_cluster_that_lacks_something_is_degraded(
    tmp_path: Path,
) -> None:
    async with small_node(tmp_path) as (node, _, client):

        async def found() -> dict[str, tuple[int, str]]:
            answer = await client.ask("GET", "/health")
            assert answer.status == 200
            told = answer.json()
            check(told, schema_of("/health"))
            assert told["status"] == ("degraded" if told["problems"] else "healthy")
            return {problem["reason"]: (problem["count"], problem["detail"]) for problem in told["problems"]}

        assert await found() == {}
        node.collector.broken = "an object of epoch 43"
        assert await found() == {"collector_stopped": (1, "an object of epoch 43")}
        node.collector.broken = None
        with patch.object(Batcher, "waited_seconds", 0.5):
            assert await found() == {}
        with patch.object(Batcher, "waited_seconds", 2.5):
            assert await found() == {}, "the store is slow, and the budget has a put left"
        spent = patch.object(MoneyBudget, "seconds_to_next", lambda _: 0.5)
        with spent, patch.object(Batcher, "waited_seconds", 2.5):
            count, detail = (await found())["requests_budget_spent"]
        assert count == 1
        assert detail.startswith("the oldest batch has waited 2.5 s; ")
        assert await found() == {}
        node.collector.broken = None
        full = "the local log cannot be changed: No space left on device"
        node.compaction.logs = {
            one.group.id: local_log(one, problem=full if one.number else None) for one in node.partitions
        }
        failing = sorted((one.group.id, f"{one.topic}-{one.number}") for one in node.partitions if one.number)
        assert await found() == {"local_logs_failing": (len(failing), f"{failing[0][1]}: {full}")}
        node.compaction.logs = {}
        state = node.machine._state
        state.put_node(node.machine.nodes[1]._replace(node=2, fenced=True))
        assert await found() == {"nodes_away": (1, "node 2 (silent)")}
        topic = node.machine.topic("orders")
        assert topic is not None
        placed = tuple(partition._replace(replicas=(1, 2)) for partition in topic.partitions)
        with patch.object(type(node.machine), "topics", [topic._replace(partitions=placed)]):
            assert await found() == {
                "nodes_away": (1, "node 2 (silent)"),
                "replicas_away": (3, "3 of 6 replicas are not there"),
            }
        state.put_node(node.machine.nodes[2]._replace(fenced=False))
        assert await found() == {}
        for group in node.host.groups.values():
            group.lost_acknowledged.add(2)
        assert await found() == {"acknowledged_lost": (len(node.host.groups), "node 2")}
        for group in node.host.groups.values():
            group.lost_acknowledged.clear()


@on_loop
async def test_a_full_disk_is_told_where_a_replica_cannot_get_its_state(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 2}) as (node, _, client):

        async def found() -> tuple[int, str | None, str]:
            answer = await client.ask("GET", "/health")
            assert answer.status == 503
            (problem,) = (one for one in answer.json()["problems"] if one["reason"] == "groups_damaged")
            return problem["count"], problem["detail"], problem["meaning"]

        groups = list(node.host.groups.values())
        for group in groups:
            group.damaged_below = 5
        count, detail, meaning = await found()
        assert (count, detail) == (len(groups), None)
        assert "as they are new here or their stored snapshots are damaged" in meaning
        groups[-1].receiving.trouble = "a snapshot's chunk cannot be written: No space left on device"
        count, detail, _ = await found()
        assert count == len(groups)
        assert detail == (
            "a snapshot's chunk cannot be written: No space left on device: free space, or mend the disk; the"
            " node then continues by itself"
        )
        for group in groups:
            group.damaged_below = None


@on_loop
async def test_a_process_that_is_not_let_in_is_told_with_the_cure(tmp_path: Path) -> None:
    """One of a node that was removed needs no other folder: it has to end."""
    async with small_node(tmp_path) as (node, _, client):
        node.host.mesh.strangers.known[2] = Stranger(0xAB, node.host.loop.time() + 60)
        for folder, cure in (
            (0xAC, "strandline node replace 2"),
            (REMOVED, "the node was removed: end that process"),
        ):
            node.machine._state.folders[2] = NodeFolder(1, folder)
            (problem,) = (await client.get("/health"))["problems"]
            assert problem["reason"] == "strangers"
            assert "node 2 comes with data folder 00000000000000ab: " in problem["detail"]
            assert cure in problem["detail"]


@on_loop
async def test_a_voter_of_the_controller_that_never_came_is_told(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        with patch.object(type(node.host.groups[0]), "voters", (1, 3)):
            (problem,) = (await client.get("/health"))["problems"]
            assert (problem["reason"], problem["detail"]) == ("nodes_away", "node 3 (never registered)")
            node.registered = False
            reasons = {each["reason"] for each in (await client.ask("GET", "/health")).json()["problems"]}
            assert "nodes_away" not in reasons, "it may only not have heard of it yet"


@on_loop
async def test_a_data_folder_is_let_in_while_its_process_comes_to_another_node(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):

        async def ask(body: dict[str, Any], status: int) -> str:
            return refused(await client.ask("POST", "/api/nodes/replace", json.dumps(body).encode()), status)

        assert "this is node 1 itself" in await ask({"node": 1}, 503), "another node is to be asked"
        assert await ask({"node": 9}, 404) == "there is no node 9 in this cluster"
        for body in ({}, {"node": "2"}, {"node": 2, "folder": "X"}, {"node": 2, "force": True}):
            assert 'the body is {"node": id}' in await ask(body, 400)
        node.machine._state.put_node(node.machine.nodes[1]._replace(node=2, fenced=True))
        assert "no process comes to this node as node 2" in await ask({"node": 2}, 409)
        with patch.object(node.host, "connected", lambda _: True):
            assert "no process comes to this node as node 2" in await ask({"node": 2}, 409), (
                "it counts as dead"
            )
            node.machine._state.put_node(node.machine.nodes[2]._replace(fenced=False))
            assert "node 2 is alive with its own data folder" in await ask({"node": 2}, 409)
        assert "no process comes to this node as node 2" in await ask({"node": 2}, 409), "it is not there"
        node.machine._state.put_node(node.machine.nodes[2]._replace(fenced=True))
        with patch.object(node.keeper, "waits_for", lambda: "its own folder is new"):
            told = await ask({"node": 2}, 503)
        assert told == "node 1 cannot let another in: its own folder is new"
        mesh = node.host.mesh
        mesh.strangers.known[2] = Stranger(0xAB, node.host.loop.time() - STRANGER_SECONDS)
        assert "no process comes to this node as node 2" in await ask({"node": 2}, 409), "it stopped coming"
        assert (await client.get("/api/nodes"))["strangers"] == []
        mesh.strangers.known[2] = Stranger(0xAB, node.host.loop.time(), foreign=True)
        for asked in ({"node": 2}, {"node": 2, "folder": f"{0xAB:016x}"}):
            assert "is of another incarnation of this cluster" in await ask(asked, 409)
        mesh.strangers.known[2] = Stranger(0xAB, node.host.loop.time(), replaced=True)
        told = await ask({"node": 2}, 409)
        assert told.startswith(
            f"data folder {0xAB:016x} was node 2's until another took its place, and lacks"
        )
        assert "start node 2 with that other folder, or with an empty one" in told
        assert (await client.get("/api/nodes"))["replacement"] is None
        mesh.strangers.known[2] = Stranger(0xAB, node.host.loop.time())
        assert (await client.get("/api/nodes"))["strangers"] == [{"node": 2, "folder": f"{0xAB:016x}"}]
        told = await ask({"node": 2, "folder": f"{0xAC:016x}"}, 409)
        assert f"no process comes to this node as node 2 with data folder {0xAC:016x}" in told
        answer = await client.ask("POST", "/api/nodes/replace", b'{"node": 2}')
        assert answer.status == 200
        assert answer.json()["folder"] == f"{0xAB:016x}"
        assert node.machine.replacement is not None
        assert node.machine.replacement.folder == 0xAB


@on_loop
async def test_a_node_is_drained_of_its_leaderships(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 2}) as (node, _, client):
        path = "/api/leaderships/drain"
        for body in ("{}", '{"node": true}', '{"node": 1, "seconds": 601}', '{"node": 1, "seconds": NaN}'):
            answer = await client.ask("POST", path, body.encode())
            assert "the body is {" in refused(answer, 400)
        assert "this is node 1: ask node 2 itself" in refused(
            await client.ask("POST", path, b'{"node": 2}'), 503
        )
        answer = await client.ask("POST", path, b'{"node": 1, "seconds": 30}')
        told = answer.json()
        check(told, schema_of("/api/leaderships"), path)
        assert 29 < told.pop("drained_seconds") <= 30
        assert told == {"node": 1, "leads": 0, "needed": 3, "behind": []}
        answer = await client.ask("POST", path, b'{"node": 1, "seconds": 0}')
        assert answer.json()["drained_seconds"] is None
        # Of two voters the other one is no majority without this node, also where that one leads.
        for voters, needed in {(1,): 3, (1, 2): 3, (1, 2, 3): 0, (2, 3): 0}.items():
            with patch.object(type(node.host.groups[0]), "voters", voters):
                assert (await client.get("/api/leaderships"))["needed"] == needed
        for behind, found in (([], []), ([3], [{"node": 3, "groups": 3, "examples": [0, 1, 2]}])):
            with patch.object(type(node.host.groups[0]), "behind", lambda _, behind=behind: behind):
                assert (await client.get("/api/leaderships"))["behind"] == found
        node.host.leader_drain.for_good()
        assert "node 1 is about to stop" in refused(await client.ask("POST", path, b'{"node": 1}'), 503)


@on_loop
async def test_a_cluster_is_upgraded_and_then_a_node_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with small_node(tmp_path, {"a": 1}) as (node, _, client):

        async def ask(path: str, body: dict[str, Any], status: int) -> str:
            return refused(await client.ask("POST", path, json.dumps(body).encode()), status)

        drain, upgrade = "/api/nodes/drain", "/api/cluster/upgrade"
        for body in ({}, {"node": "2"}, {"node": 2, "draining": 1}, {"node": 2, "force": True}, {"node": 0}):
            assert 'the body is {"node": id}' in await ask(drain, body, 400)
        for body in ({"level": "2"}, {"level": 0}, {"to": 2}):
            assert "the body is {}, or" in await ask(upgrade, body, 400)
        assert f"understands feature levels up to {FEATURE_LEVEL}" in await ask(upgrade, {"level": 99}, 400)
        assert "needs feature level 2" in await ask(drain, {"node": 1}, 409)
        assert "needs feature level 6" in await ask("/api/balance", {"on": True}, 409)
        known = node.machine.nodes[1]
        node.machine._state.put_node(known._replace(max_feature_level=1))
        why = f"Node 1 understands feature levels up to 1, not {FEATURE_LEVEL}: upgrade it"
        assert why in await ask(upgrade, {}, 409)
        node.machine._state.put_node(known._replace(max_feature_level=FEATURE_LEVEL, rack="east"))
        answer = await client.ask("POST", upgrade, b"{}")
        assert (answer.status, answer.json()) == (200, {"feature_level": FEATURE_LEVEL, "before": 1})
        assert "Node 9 is not registered" in await ask(drain, {"node": 9}, 404)
        assert "cannot be drained: topics have more replicas than the 0 other" in await ask(
            drain, {"node": 1}, 409
        )
        for wrong in ({}, {"on": 1}, {"on": True, "now": True}):
            assert 'the body is {"on": true}' in await ask("/api/balance", wrong, 400)
        answer = await client.ask("POST", "/api/balance", b'{"on": true}')
        assert (answer.status, answer.json()) == (200, {"on": True})
        assert await client.get("/api/balance") == {
            "on": True,
            "waits": None,
            "nodes": [{"node": 1, "rack": "east", "replicas": 1}],
            "steps": [],
            "more": False,
        }
        parts, planned = Balance.parts, list[int]()

        def overtaken(self: Balance) -> Iterator[Step | None]:
            planned.append(len(planned))
            node.machine._state.version += len(planned) < 6
            yield None
            yield from parts(self)

        with monkeypatch.context() as patched:
            patched.setattr(Balance, "parts", overtaken)
            answer = await client.ask("GET", "/api/balance")
            assert "changed whenever moves were planned" in refused(answer, 503)
            assert len(planned) == 3
            planned.extend([0] * 3)
            assert (await client.get("/api/balance"))["steps"] == []
            assert len(planned) == 7
        answer = await client.ask("POST", drain, b'{"node": 1, "draining": false}')
        assert (answer.status, answer.json()["draining"]) == (200, False)
        (row,) = (await client.get("/api/nodes"))["nodes"]
        assert (row["rack"], row["draining"], row["without_room"]) == ("east", False, 0)
        node.machine._state.draining.add(1)
        (row,) = (await client.get("/api/nodes"))["nodes"]
        assert (row["draining"], row["without_room"], row["replicas"]) == (True, 1, 1)
        assert row["below_minimum"] == []

        remove = "/api/nodes/remove"
        for body in ({}, {"node": "2"}, {"node": 2, "force": True}, {"node": 0}):
            assert 'the body is {"node": id}' in await ask(remove, body, 400)
        assert "Node 9 is not registered" in await ask(remove, {"node": 9}, 404)
        assert "Node 1 is alive: stop its process first" in await ask(remove, {"node": 1}, 409)
        dead = node.machine.nodes[1]._replace(node=2, fenced=True)
        node.machine._state.put_node(dead)
        node.machine._state.folders[2] = NodeFolder(1, 77)
        submitted: list[Any] = []
        submit = node.controller.submit

        async def noted(command: Any, timeout: float) -> Any:  # noqa: ASYNC109
            submitted.append(command)
            return await submit(command, timeout)

        with monkeypatch.context() as patched:
            patched.setattr(node.controller, "submit", noted)
            answer = await client.ask("POST", remove, b'{"node": 2}')
        assert (answer.status, answer.json()) == (200, {"node": 2, "leaving": 1})
        assert submitted == [RemoveNode(2, 2)], "that folder and no later one"
        told = await client.get("/api/nodes")
        assert [one["node"] for one in told["nodes"]] == [1]
        assert (told["replacement"]["node"], told["replacement"]["leaving"]) == (2, 1)


@on_loop
async def test_a_group_without_leader_is_unhealthy_until_it_has_one(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 1}) as (node, _, client):
        group = node.host.groups[0]
        group.roles.adopt_term(group.term + 1)
        answer = (await client.ask("GET", "/health")).json()
        assert [problem["reason"] for problem in answer["problems"]] == ["no_controller"]
        await node.led(0)
        assert (await client.ask("GET", "/health")).status == 200


@on_loop
async def test_a_checkpoint_is_taken_as_asked_and_one_at_a_time(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        ask = b'{"topics": ["orders", "orders"], "lease_seconds": 1.5, "timeout_seconds": 7}'
        first = asyncio.create_task(client.ask("POST", "/api/checkpoints", ask))
        await until(lambda: bool(node.checkpoints.asked))
        assert "wait for it" in refused(await client.ask("POST", "/api/checkpoints", b"{}"), 409)
        node.checkpoints.gate.set()
        check((await first).json(), schema_of("/api/checkpoints", "post"))
        assert (await client.ask("POST", "/api/checkpoints", b"{}")).status == 200
        assert node.checkpoints.asked == [(["orders"], 1500, 7.0), (None, 3_600_000, 60.0)]
        node.checkpoints.error = UnknownTopic("there is no topic x")
        assert refused(await client.ask("POST", "/api/checkpoints", b'{"topics": ["x"]}'), 404)
        node.checkpoints.error = CheckpointUnderWay("one is being taken: wait for it")
        assert "wait for it" in refused(await client.ask("POST", "/api/checkpoints", b"{}"), 409)
        node.checkpoints.error = RuntimeError("a bug")
        assert "log" in refused(await client.ask("POST", "/api/checkpoints", b"{}"), 500)
        node.checkpoints.error = None
        assert (await client.ask("POST", "/api/checkpoints", b"{}")).status == 200


@on_loop
async def test_leases_are_renewed_as_asked(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        path = "/api/checkpoints/renew"
        lease = b'{"group": 1, "index": 7}, {"group": 2, "index": 9}, {"group": 1, "index": 7}'
        answer = await client.ask("POST", path, b'{"checkpoints": [%s], "lease_seconds": 1.5}' % lease)
        check(answer.json(), schema_of(path, "post"))
        assert not answer.json()["complete"]
        assert [each["ended"] for each in answer.json()["checkpoints"]] == [False, True]
        assert node.checkpoints.asked == [([(1, 7), (2, 9)], 1500, 20.0)]
        for body, why in [
            (b"{}", "checkpoints"), (b'{"checkpoints": []}', "checkpoints"), (b"[]", "object"),
            (b'{"checkpoints": [{"group": 1}]}', "checkpoints"), (b'{"checkpoints": [7]}', "checkpoints"),
            (b'{"checkpoints": [{"group": 0, "index": 7}]}', "partitions"),
            (b'{"checkpoints": [{"group": true, "index": 7}]}', "checkpoints"),
            (b'{"checkpoints": [{"group": 1, "index": 9223372036854775808}]}', "checkpoints"),
            (b'{"topics": ["a"]}', "'topics'"),
            (b'{"checkpoints": [{"group": 1, "index": 7}], "lease_seconds": 0}', "lease_seconds"),
        ]:  # fmt: skip
            assert why in refused(await client.ask("POST", path, body), 400), body
        assert len(node.checkpoints.asked) == 1


BAD_BODIES = [
    (b"[]", "object"), (b"null", "object"), (b'"x"', "object"), (b"{", "not JSON"), (b"\xff{}", "not JSON"),
    (b"[" * 60_000, "not JSON"), (b'{"topic": ["a"]}', "'topic'"), (b'{"topics": []}', "topics"),
    (b'{"topics": "orders"}', "topics"), (b'{"topics": [1]}', "topics"), (b'{"topics": {}}', "topics"),
    (b'{"topics": [' + b'"a",' * 1000 + b'"b"]}', "topics"), (b'{"lease_seconds": true}', "lease_seconds"),
    (b'{"lease_seconds": 0}', "lease_seconds"), (b'{"lease_seconds": 1e300}', "lease_seconds"),
    (b'{"lease_seconds": NaN}', "lease_seconds"), (b'{"lease_seconds": "5"}', "lease_seconds"),
    (b'{"timeout_seconds": 601}', "timeout_seconds"), (b'{"timeout_seconds": null}', "timeout_seconds"),
    (b'{"timeout_seconds": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"timeout_seconds": ' + b"9" * 400 + b"}", "timeout_seconds"),
]  # fmt: skip


@on_loop
async def test_what_is_not_a_checkpoint_request_is_refused(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        for body, why in BAD_BODIES:
            answer = await client.ask("POST", "/api/checkpoints", body)
            assert why in refused(answer, 400), (body[:80], answer)
        refused(await client.ask("POST", "/api/checkpoints", b"{}", "text/plain"), 415)
        refused(await client.ask("POST", "/api/checkpoints"), 415)
        refused(await client.ask("POST", "/api/checkpoints", b" " * (http.MAX_BODY_BYTES + 1)), 413)
        assert node.checkpoints.asked == []


@on_loop
async def test_what_is_not_a_request_of_this_api_is_refused(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (_, _, client):
        for target in (
            "/",
            "/nothing",
            "/api",
            "/api/cluster/",
            "//health",
            "/api/topics/a/b",
            "/%00",
            "/\x7f",
        ):
            answer = await client.ask("GET", target)
            refused(answer, 400 if target == "/\x7f" else 404)
        for target in ("/api/topics/none", "/api/topics/%F0%9F%90%9F", "/api/topics/..%2f..%2fetc"):
            refused(await client.ask("GET", target), 404)
        for query in ("limit=0", f"limit={MAX_PAGE + 1}", "limit=x", "limit=-1", "limit=", "limit=1e3",
                      "limit=%D9%A1", "limit=" + "9" * 5000, "after=" + "9" * 19, "x=1",
                      "topic=a&y"):  # fmt: skip
            refused(await client.ask("GET", f"/api/groups?{query}"), 400)
        for method, target in (("POST", "/health"), ("DELETE", "/api/topics/a"), ("GET", "/api/checkpoints"),
                               ("TRACE", "/metrics")):  # fmt: skip
            assert method in refused(await client.ask(method, target), 405)


@on_loop
async def test_what_is_not_http_is_refused_and_the_server_lives(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (_, _, client):
        for data in (
            b"\x00\x00\x00\x10kafka request\r\n\r\n",
            b"GET / HTTP/eleven\r\n\r\n",
            b"GET /health HTTP/1.1\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * (http.MAX_HEAD_BYTES + 1),
        ):
            answer = parsed(await client.raw(data))
            refused(answer, 400)
        # A websocket is not spoken; the request is answered as if it had not been asked for.
        upgrade = b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        upgrade = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + upgrade
        assert parsed(await client.raw(upgrade)).status == 200
        # One that breaks off within its body leaves nothing behind.
        head = b"POST /api/checkpoints HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(head + b"Content-Length: 10\r\n\r\n{")
        await writer.drain()
        writer.close()
        assert (await client.ask("GET", "/health")).status == 200


@on_loop
async def test_requests_at_once_are_bounded_but_for_health(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        head = b"POST /api/checkpoints HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
        held = []
        for _ in range(http.MAX_REQUESTS):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(head)
            held.append((reader, writer))
        while True:
            answer = await client.ask("GET", "/api/cluster")
            if answer.status == 503:
                break
        assert "try again" in refused(answer, 503)
        assert answer.headers["retry-after"] == "1"
        assert (await client.ask("GET", "/health")).status == 200
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(5):
            while (await client.ask("GET", "/api/cluster")).status != 200:
                pass
        assert not node.checkpoints.asked


def test_connections_are_bounded_by_address_and_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle connection makes room: an address's own where it has too many, else the oldest of all."""
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(http, "MAX_OF_ADDRESS", 3)
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    @on_loop
    async def run() -> None:
        async with small_node(tmp_path, {}) as (_, server, client):
            closing: list[asyncio.StreamWriter] = []

            async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                streams = await asyncio.open_connection("127.0.0.1", client.port, local_addr=(address, 0))
                streams[1].write(health)
                closing.append(streams[1])
                assert b" 200 OK" in await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), 5)
                await asyncio.sleep(0.005)  # the loop's clock has milliseconds
                return streams

            async def is_open(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
                try:
                    streams[1].write(health)
                    return bool(await asyncio.wait_for(streams[0].readuntil(b" 200 OK"), 5))
                except (ConnectionError, asyncio.IncompleteReadError):
                    return False

            mine = [await opened("127.0.0.1") for _ in range(4)]
            assert len(server._state.connections) == 3
            theirs = [await opened("127.0.0.2")]
            assert len(server._state.connections) == 4
            theirs.append(await opened("127.0.0.2"))
            assert len(server._state.connections) == 4
            opens = [await is_open(each) for each in (*mine, *theirs)]
            assert opens == [False, False, True, True, True, True]
            for one in server._state.connections:
                monkeypatch.setattr(type(one), "_idle", False)
            with pytest.raises((AssertionError, OSError, asyncio.IncompleteReadError)):
                await opened("127.0.0.3")
            assert len(server._state.connections) == 4, "where all are answered, the new one ends"
            for writer in closing:
                writer.close()

    run()


def test_room_is_not_made_by_one_that_still_gets_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two idle ones the older has bytes to send, so the other one ends."""
    monkeypatch.setattr(http, "MAX_OF_ADDRESS", 2)

    class Late:
        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def get_write_buffer_size(self) -> int:
            return 1

        def __getattr__(self, name: str) -> object:
            return getattr(self._transport, name)

    @on_loop
    async def run() -> None:
        async with small_node(tmp_path, {}) as (_, server, client):
            streams = [await asyncio.open_connection("127.0.0.1", client.port)]
            streams[0][1].write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(streams[0][0].readuntil(b"\r\n\r\n"), 5)
            there = [*server._state.connections]
            monkeypatch.setattr(there[0], "transport", Late(there[0].transport))
            await asyncio.sleep(0.005)  # the loop's clock has milliseconds
            streams += [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(2)]
            assert await asyncio.wait_for(streams[1][0].read(), 5) == b"", "it made room"
            assert there[0] in server._state.connections
            for _, writer in streams:
                writer.close()

    run()


def test_who_does_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(http, "BODY_SECONDS", 0.1)

    @on_loop
    async def run() -> None:
        async with small_node(tmp_path, {}) as (_, _, client):
            for sent in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea"):
                async with asyncio.timeout(3):
                    try:
                        answer = await client.raw(sent)
                    except ConnectionError:
                        continue
                assert answer == b"" or parsed(answer).status == 200
            head = b"POST /api/checkpoints HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            head += b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
            assert "complete" in refused(parsed(await client.raw(head)), 408)

    run()


def test_who_does_not_take_its_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(_: Metrics) -> bytes:
        return bytes(32 << 20)

    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(Metrics, "page", page)

    @on_loop
    async def run() -> None:
        async with small_node(tmp_path, {}) as (_, server, client):
            with socket.create_connection(("127.0.0.1", client.port)) as peer:
                peer.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await until(lambda: len(server._state.connections) == 1)
                await until(lambda: not server._state.connections)

    run()


def test_a_request_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.node.admin.server.SECONDS", {"/api/checkpoints": 0.1})

    @on_loop
    async def run() -> None:
        async with small_node(tmp_path, {}) as (node, _, client):
            assert "0.1 s" in refused(await client.ask("POST", "/api/checkpoints", b"{}"), 503)
            node.checkpoints.gate.set()
            assert (await client.ask("POST", "/api/checkpoints", b"{}")).status == 200

    run()


@on_loop
async def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    node = SmallNode(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AdminListenError) as raised:
            AdminServer(node, "127.0.0.1", port).bind()
    text = str(raised.value)
    assert f"127.0.0.1:{port}" in text
    assert "in use" in text
    assert "admin.port" in text
    assert "\n" not in text
    free = AdminServer(node, "127.0.0.1", 0)
    free.bind()
    assert free.port > 0
    await free.stop()
    node.executor.shutdown()


@on_loop
async def test_stopping_gives_an_answer_under_way_its_time_and_not_more(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, server, client):

        async def begin() -> asyncio.Task[bytes]:
            head = b"POST /api/checkpoints HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            count = len(node.checkpoints.asked)
            task = asyncio.create_task(client.raw(head + b"Content-Length: 2\r\n\r\n{}"))
            await until(lambda: len(node.checkpoints.asked) > count)
            return task

        answered = await begin()
        idle, writer = await asyncio.open_connection("127.0.0.1", client.port)
        asyncio.get_running_loop().call_later(0.05, node.checkpoints.gate.set)
        await server.stop(5.0)
        assert parsed(await answered).status == 200
        assert await idle.read(-1) == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await client.raw(b"")

        node.checkpoints.gate.clear()
        again = AdminServer(node, "127.0.0.1", 0)
        await again.start()
        client.port = again.port
        cut = await begin()
        async with asyncio.timeout(2):
            await again.stop(0.05)
        with contextlib.suppress(ConnectionError):
            assert b"200 OK" not in await cut


class PlayedTicks:
    """The log's timer, which a test makes tick."""

    watch: TickWatch | None = None


def test_loop_lag_is_how_late_the_timer_was() -> None:
    """By a clock that is played: on a busy machine real ticks are late by themselves."""
    now = 0.0
    ticks = PlayedTicks()
    lag = LoopLag(ticks, lambda: now)
    lag.start()
    for late in (0.0, 0.15, 0.0):
        assert ticks.watch is not None
        ticks.watch.planned(TICK_SECONDS)
        now += TICK_SECONDS + late
        ticks.watch.ticked()
    lag.stop()
    assert ticks.watch is None, "what comes later is not measured"
    assert lag.seconds.count == 3
    late = lag.seconds.bounds.index(0.2)
    assert (lag.seconds.counts[0], lag.seconds.counts[late]) == (2, 1)
