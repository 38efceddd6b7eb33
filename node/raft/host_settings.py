"""A node's identity and the limits of its replicated log, checked together."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.outbox import FRAME_BYTES
from strandline.node.raft.wal.config import WalConfig
from strandline.node.tls.keeper import TlsSettings

_FRAMING_BYTES = 1024
"""Most bytes of framing around one entry or chunk. A run of tiny entries takes up to three times their
size."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """A node's identity, its address, its data folder, and the limits of its parts."""

    node_id: int
    cluster_id: str
    secret: bytes
    boot_id: int
    folder: str
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    raft: RaftConfig = field(default_factory=RaftConfig)
    wal: WalConfig = field(default_factory=WalConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tls: TlsSettings | None = None
    """Of the mesh."""

    def __post_init__(self) -> None:
        """Raise ValueError if the log accepts entries that the mesh or the disk's buffer could never take."""
        raft = self.raft
        run = max(raft.max_entry_bytes, 3 * raft.max_append_bytes)
        needed = max(run, raft.snapshot_chunk_bytes, FRAME_BYTES) + _FRAMING_BYTES
        if self.mesh.max_frame_bytes < needed:
            raise ValueError(
                f"mesh max_frame_bytes is {self.mesh.max_frame_bytes} and {needed} is needed for what"
                " max_entry_bytes, max_append_bytes and snapshot_chunk_bytes allow: raise it, or lower them"
            )
        needed = 2 * (run + _FRAMING_BYTES)
        if self.wal.max_buffered_bytes < needed:
            raise ValueError(
                f"wal max_buffered_bytes is {self.wal.max_buffered_bytes} and {needed} is needed for what"
                " max_entry_bytes and max_append_bytes allow: raise it, or lower them"
            )
