"""A node's configuration in the words of its parts: the host of the logs, and the registration."""

from __future__ import annotations

from strandline.node.config.node_config import NodeConfig
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.wal.config import WalConfig
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL, RegisterNode


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
    )


def registration_of(
    config: NodeConfig, *, boot_id: int, folder: int, kafka_port: int, admin_port: int, now_ms: int
) -> RegisterNode:
    """The command that makes this process known; the ports are those it listens on."""
    me = next(peer for peer in config.cluster.nodes if peer.id == config.node.id)
    return RegisterNode(
        config.node.id,
        boot_id,
        0,
        config.kafka.advertised_host or config.kafka.host,
        config.kafka.advertised_port or kafka_port,
        me.host,
        me.port,
        admin_port,
        1,
        FEATURE_LEVEL,
        now_ms,
        folder,
    )
