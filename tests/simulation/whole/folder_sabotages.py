"""Rules about data folders taken out again: what sabotages.py opens, by name.

Each hole is (name, what is wrong, how it is opened). Nothing here is ever imported by the product.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from strandline.node.controller import replacements
from strandline.node.controller.folder_keeper import FolderKeeper
from strandline.node.raft.data_folder import Folder, RunBlocking, Standing
from strandline.node.raft.folder_file import FolderFields, FolderFile
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.mesh.handshake import Handshake
from strandline.node.raft.outcome import Outcome
from strandline.statemachine.controller import hosted_groups
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from tests.simulation.sabotage import Sabotage


def _lets_anything_in(self: Folder, peer: int, claim: Standing) -> str | None:
    return None


def _is_what_is_known(self: Handshake) -> str | None:
    return None


def _knows_nobody(self: Folder, file: FolderFile, fields: FolderFields, run_blocking: RunBlocking) -> None:
    """As Folder.__init__, but what was written of others is not read back."""
    _made(self, file, replace(fields, peers={}), run_blocking)


_made = Folder.__init__


def _begins_as_a_founder(state: ControllerState, group: int, joins: bool) -> PartitionGroup:
    return _partition_group(state, group, False)


_partition_group = hosted_groups._partition_group


async def _done_at_once(group: RaftGroup, change: asyncio.Future[Outcome]) -> bool:
    """As _changed, but it does not wait until the members are committed."""
    return True


async def _founds_anyway(self: FolderKeeper) -> None:
    """As FolderKeeper.begin, but whose the storage is does not matter."""
    await _begin(self)
    self._host.give_vote()
    self._host.store_folder(lambda error: None)


_begin = FolderKeeper.begin

FOLDERS: Final = (
    Sabotage(
        "any-folder",
        "data folders are not compared",
        lambda: (
            patch.object(Folder, "reason_to_refuse", _lets_anything_in),
            patch.object(Handshake, "disowned", _is_what_is_known),
        ),
    ),
    Sabotage(
        "folders-in-memory",
        "a process that starts does not know the others' data folders",
        lambda: (patch.object(Folder, "__init__", _knows_nobody),),
    ),
    Sabotage(
        "joins-as-a-founder",
        "a new folder begins old groups with their members",
        lambda: (patch.object(hosted_groups, "_partition_group", _begins_as_a_founder),),
    ),
    Sabotage(
        "left-too-early",
        "a group is reported to have left a node out before that is committed",
        lambda: (patch.object(replacements, "_changed", _done_at_once),),
    ),
    Sabotage(
        "newcomers-count",
        "a folder that may have had a predecessor votes",
        lambda: (
            patch.object(RaftHost, "newcomer", property(lambda self: False)),
            patch.object(RaftHost, "is_newcomer", lambda self, peer: False),
        ),
    ),
    Sabotage(
        "founds-anyway",
        "a new folder founds a cluster although the storage has an owner",
        lambda: (patch.object(FolderKeeper, "begin", _founds_anyway),),
    ),
)
