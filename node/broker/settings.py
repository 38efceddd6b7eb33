"""A node's configuration in the words of its parts: the host of the logs, the listeners, the registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

from strandline.node.config.node_config import NodeConfig
from strandline.node.kafka.wire.server_config import ServerConfig
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.wal.config import WalConfig
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL, AddNode, RegisterNode


def host_settings(config: NodeConfig, boot_id: int, wal: WalConfig) -> HostSettings:
    """Settings of the host of all Raft groups."""
    return HostSettings(
        config.node.id,
        config.cluster.id,
        config.cluster.secret.encode(),
        boot_id,
        config.node.data,
        config.mesh.host,
        config.mesh.port,
        wal=wal,
        tls=config.mesh.tls,
    )


def server_config(config: NodeConfig) -> ServerConfig:
    """Bounds of the Kafka listeners: those of connections have the same names in both."""
    return ServerConfig(**asdict(config.quotas))


def registration_of(
    config: NodeConfig,
    *,
    boot_id: int,
    folder: int,
    kafka_ports: Mapping[str, int],
    admin_port: int,
    now_ms: int,
) -> RegisterNode:
    """The command that makes this process known; the ports are those it listens on, by listener."""
    told = [
        (one.name, one.advertised_host or one.host, one.advertised_port or kafka_ports[one.name])
        for one in config.listeners
    ]
    _, kafka_host, kafka_port = told[0]
    mesh_host, mesh_port = config.mesh.told
    return RegisterNode(
        config.node.id,
        boot_id,
        0,
        kafka_host,
        kafka_port,
        mesh_host,
        mesh_port,
        admin_port,
        1,
        FEATURE_LEVEL,
        now_ms,
        folder,
        told if config.named_listeners else (),
        config.node.rack,
    )


def addition_of(command: RegisterNode) -> AddNode:
    """The command that makes this process's machine a node, if it was none before."""
    return AddNode(**{one.name: getattr(command, one.name) for one in fields(AddNode)})
