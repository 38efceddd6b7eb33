"""AddNode: a machine becomes a node, which counts as dead until it registers."""

from __future__ import annotations

from dataclasses import replace

from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    AddNode,
    FenceNode,
    RemoveNode,
    ReplaceNode,
    ReplicasJoined,
    ReplicasLeft,
)
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, registration

ALL = (1, FEATURE_LEVEL)


def log_of_three() -> Log:
    log = Log(nodes=0, level=FEATURE_LEVEL)
    for node in (1, 2, 3):
        log.do(registration(node, levels=ALL))
    return log


def addition(node: int = 4, folder: int = 504, levels: tuple[int, int] = ALL) -> AddNode:
    return AddNode(node, 104, "kafka4", 9004, "mesh4", 7004, 8004, *levels, 1_000, folder, (), "east")


def test_an_added_node_is_known_and_dead_until_it_registers() -> None:
    log = log_of_three()
    before = log.machine.version
    assert log.do(addition()) == 4
    known = log.machine.nodes[4]
    assert (known.mesh_host, known.mesh_port, known.fenced, known.rack) == ("mesh4", 7004, True, "east")
    assert log.machine.folders[4] == (1, 504)
    assert log.machine.version > before
    assert log.do(addition()) == 4, "told twice"
    log.do(registration(4, 104, levels=ALL, folder=504))
    assert not log.machine.nodes[4].fenced
    again = Controller(lambda index, captured: None)
    again.restore(log.machine.snapshot())
    assert again.snapshot() == log.machine.snapshot()
    assert log.do(replace(addition(), boot_id=105)) == 4, "a process that starts again asks again"
    assert log.machine.nodes[4].boot_id == 104, "and registers in its own time"


def test_an_id_in_use_is_refused_with_cause_and_cure() -> None:
    log = log_of_three()
    error, message = log.refused(addition(3, 777))
    assert error is KafkaError.INVALID_REGISTRATION
    assert "Node 3 has data folder 00000000000001f7: give the new machine a node.id that no other" in message
    assert "strandline node replace 3" in message
    log.do(addition())
    log.do(RemoveNode(4))
    log.do(ReplicasLeft(4, 0, (0,)))
    assert "Node 4 was removed from this cluster" in log.refused(addition())[1], "not by its own folder"
    assert "Node 4 was removed from this cluster" in log.refused(addition(folder=778))[1]
    assert 4 not in log.machine.nodes


def test_a_dead_node_may_say_where_it_listens_now() -> None:
    log = log_of_three()
    log.do(addition())
    moved = replace(addition(), mesh_host="elsewhere", boot_id=105)
    log.do(moved)
    assert log.machine.nodes[4].mesh_host == "elsewhere"
    log.do(registration(4, 104, levels=ALL, folder=504))
    log.do(moved)
    assert log.machine.nodes[4].mesh_host == "mesh4", "it is alive where it says"


def test_a_node_whose_release_does_not_fit_is_not_added() -> None:
    log = log_of_three()
    error, message = log.refused(addition(levels=(1, FEATURE_LEVEL - 1)))
    assert error is KafkaError.UNSUPPORTED_VERSION
    assert "install a release that understands it" in message
    assert 4 not in log.machine.folders


def test_a_machine_that_takes_a_removed_node_s_id_tells_its_own_address() -> None:
    log = log_of_three()
    log.do(registration(4, levels=ALL))
    log.do(FenceNode(4, log.machine.nodes[4].heard_index, 2_000))
    log.do(RemoveNode(4))
    log.do(ReplicasLeft(4, 0, (0,)))
    log.do(ReplaceNode(4, 900))
    log.do(ReplicasLeft(4, 900, (0,)))
    assert 4 not in log.machine.nodes, "it never said where it listens"
    assert log.do(addition(folder=900)) == 4
    assert log.machine.nodes[4].mesh_host == "mesh4"
    log.do(ReplicasJoined(4, 900, (0,)))
    assert log.machine.replacement is None
