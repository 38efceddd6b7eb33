"""Limits that contradict each other are refused, by name, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.wal.write_ahead_log import WalConfig

CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("heartbeat_seconds", {"heartbeat_seconds": 0.0}),
    ("heartbeat_seconds", {"heartbeat_seconds": -0.1}),
    ("heartbeat_seconds", {"heartbeat_seconds": 0.3}),
    ("election_min_seconds", {"election_max_seconds": 0.4}),
    ("lease_fraction", {"lease_fraction": 0.0}),
    ("lease_fraction", {"lease_fraction": 1.0}),
    ("time_gap_seconds", {"time_gap_seconds": 0.0}),
    ("time_gap_seconds", {"time_gap_seconds": 0.17}),
    ("max_append_bytes", {"max_append_bytes": 0}),
    ("max_entry_bytes", {"max_entry_bytes": 0}),
]


@pytest.mark.parametrize(
    ("name", "values"), CONTRADICTIONS, ids=[str(values) for _, values in CONTRADICTIONS]
)
def test_contradiction_is_refused_by_name(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        RaftConfig(**values)
    assert "\n" not in str(caught.value)


def test_lease_is_shorter_than_the_time_for_which_votes_are_withheld() -> None:
    config = RaftConfig()
    assert 0 < config.lease_seconds < config.election_min_seconds
    assert config.heartbeat_seconds * 2 <= config.lease_seconds, "one lost heartbeat costs no lease"


def test_defaults_fit_each_other() -> None:
    config = RaftConfig()
    assert config.max_append_bytes <= config.max_inflight_bytes
    assert config.max_entry_bytes <= config.max_pending_bytes
    assert config.trailing_entries <= config.snapshot_entries
    assert config.trailing_bytes <= config.snapshot_bytes


@pytest.mark.parametrize(
    "limits",
    [
        {"raft": RaftConfig(max_entry_bytes=9 << 20)},
        {"raft": RaftConfig(snapshot_chunk_bytes=9 << 20)},
        {"raft": RaftConfig(max_append_bytes=3 << 20)},
        {"mesh": MeshConfig(max_frame_bytes=1 << 20)},
    ],
)
def test_what_the_log_takes_the_mesh_can_pass_on(limits: dict[str, Any]) -> None:
    HostSettings(1, "c", b"secret", 1, "/data")
    with pytest.raises(ValueError, match=r"mesh max_frame_bytes is \d+ and \d+ is needed"):
        HostSettings(1, "c", b"secret", 1, "/data", **limits)


def test_what_the_log_takes_fits_the_half_of_the_disks_buffer_that_is_for_entries() -> None:
    with pytest.raises(ValueError, match=r"wal max_buffered_bytes is \d+ and \d+ is needed"):
        HostSettings(1, "c", b"secret", 1, "/data", wal=WalConfig(max_buffered_bytes=8 << 20))
