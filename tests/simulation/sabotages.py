"""Rules taken out again, one at a time: each sabotage reopens one hole that the replicated log closes.

The simulation must find every one of them; what it takes is told in docs/simulation.md. Nothing here is ever
imported by the product.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from node.raft.group import RaftGroup
from node.raft.host import RaftHost
from tests.simulation import sabotaged_parts as parts
from tests.simulation import sabotaged_rules as rules


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One hole. What is broken is the group, the host, or a part that `places` names by module."""

    name: str
    hole: str
    broken: type
    places: tuple[str, ...] = ()
    found_with: tuple[int, ...] = ()
    """Seeds known to find it."""

    def host_class(self) -> type[RaftHost]:
        if issubclass(self.broken, RaftHost):
            return self.broken
        if issubclass(self.broken, RaftGroup):
            return type("SabotagedHost", (RaftHost,), {"group_class": self.broken})
        return RaftHost


_ALL = (
    Sabotage("ack-before-sync", "acknowledgements leave before fdatasync", parts.AcknowledgesBeforeSync),
    Sabotage("vote-before-sync", "votes leave before fdatasync", parts.VotesBeforeSync),
    Sabotage(
        "counts-itself-before-sync",
        "the leader counts itself before its own sync",
        rules.CountsItselfBeforeSync,
    ),
    Sabotage("vote-not-recorded", "a restarted node may vote twice in a term", rules.VoteNotRecorded),
    Sabotage(
        "term-not-recorded",
        "terms are not in the log",
        parts.TermNotRecorded,
        ("stored_groups.GroupJournal",),
    ),
    Sabotage(
        "truncation-not-recorded",
        "deleted entries come back with a restart",
        parts.TruncationNotRecorded,
        ("stored_groups.GroupJournal",),
    ),
    Sabotage(
        "failed-sync-ignored",
        "a failed fdatasync counts as a good one",
        parts.IgnoresFailedSync,
        ("host.WriteAheadLog",),
    ),
    Sabotage("truncates-after-previous", "matching entries are deleted too", rules.TruncatesAfterPrevious),
    Sabotage("commits-to-own-end", "a follower commits what nobody proved", rules.CommitsToOwnEnd),
    Sabotage("acks-own-end", "a follower acknowledges what nobody proved", rules.AcknowledgesOwnEnd),
    Sabotage(
        "replies-across-terms", "a delayed reply counts in a later term", rules.CountsRepliesOfOtherTerms
    ),
    Sabotage(
        "stale-leader-unanswered",
        "an append of a lower term gets no answer",
        rules.LeavesStaleLeadersUnanswered,
    ),
    Sabotage(
        "next-moves-back",
        "an acknowledgement sends everything twice",
        parts.MovesNextBack,
        ("replication.Progress", "membership.Progress"),
    ),
    Sabotage("commits-on-heartbeat", "appends wait for the heartbeat", rules.CommitsOnHeartbeat),
    Sabotage(
        "no-own-term-rule", "entries of earlier terms are committed by counting", rules.CommitsWithoutOwnTerm
    ),
    Sabotage("votes-not-voters", "a doubled vote counts twice", rules.CountsVotesNotVoters),
    Sabotage("votes-twice", "a node votes for whoever asks last", rules.VotesTwice),
    Sabotage("ignores-older-logs", "a candidate that lacks entries gets votes", rules.IgnoresOlderLogs),
    Sabotage("no-pre-vote", "a returning node deposes a healthy leader", rules.CampaignsAtOnce),
    Sabotage("no-stickiness", "votes are granted while a leader is heard", rules.ForgetsItsLeader),
    Sabotage(
        "votes-after-restart",
        "a restarted node helps depose a leader with a lease",
        rules.VotesRightAfterRestart,
    ),
    Sabotage("no-check-quorum", "a leader that nobody hears leads on", rules.LeadsWithoutQuorum),
    Sabotage("lease-from-receive-time", "old answers extend a lease", rules.LeaseFromReceiveTime),
    Sabotage("reads-unconfirmed", "a deposed leader answers reads", rules.ReadsUnconfirmed),
    Sabotage("reads-before-own-term", "a new leader reads before it knows all", rules.ReadsBeforeOwnTerm),
    Sabotage("pending-never-ends", "commands of a deposed leader end silently", rules.NeverEndsPending),
    Sabotage(
        "applies-again", "a callback that raises makes its entry apply again", rules.AppliesAgainAfterError
    ),
    Sabotage("transfer-by-ordinary-vote", "voters refuse a transfer's target", rules.TransfersByOrdinaryVote),
    Sabotage(
        "transfer-with-pending", "a transfer leaves outcomes unknown", rules.TransfersWithCommandsPending
    ),
    Sabotage(
        "lease-kept-in-transfer", "a leader that hands over still answers reads", rules.KeepsLeaseInTransfer
    ),
    Sabotage(
        "two-changes-at-once", "a second change begins before the first ends", rules.ChangesMembersAtWill
    ),
    Sabotage(
        "configuration-when-applied",
        "after a restart journalled changes do not count",
        rules.ConfigurationCountsOnceApplied,
    ),
    Sabotage("snapshot-of-current-members", "a snapshot has later members", rules.SnapshotsCurrentMembers),
    Sabotage("voter-before-catch-up", "a new member votes at once", rules.AddsVotersAtOnce),
    Sabotage(
        "log-cleared-on-open",
        "entries above a snapshot vanish with a restart",
        parts.ClearsLogAboveSnapshot,
        ("stored_groups.RecoveredLog",),
    ),
    Sabotage(
        "older-snapshot-installed", "a late snapshot takes the state back", rules.InstallsOlderSnapshots
    ),
    Sabotage("suffix-dropped", "installing loses acknowledged entries", rules.DropsMatchingSuffix),
    Sabotage("suffix-kept", "installing keeps entries that conflict", rules.KeepsConflictingSuffix),
    Sabotage(
        "damaged-snapshot-swallowed", "a bad snapshot becomes an empty state", parts.SwallowsDamagedSnapshots
    ),
    Sabotage(
        "snapshot-not-synced",
        "a snapshot replaces entries before it is durable",
        parts.StoresUnsyncedSnapshots,
        ("host.SnapshotStore",),
    ),
    Sabotage(
        "segment-dropped-with-vote",
        "a segment goes with the newest vote in it",
        parts.DropsSegmentsWithVotes,
        ("host.SegmentUse",),
    ),
    Sabotage(
        "heartbeat-digest-ignored",
        "a heartbeat refreshes groups its sender does not lead",
        parts.AcceptsAnyHeartbeat,
        ("host.QuietHeartbeats",),
    ),
    Sabotage(
        "silence-unnoticed",
        "followers of quiet groups sleep on when their leader dies",
        parts.WakesNobody,
        ("host.QuietHeartbeats",),
    ),
)

SABOTAGES: dict[str, Sabotage] = {sabotage.name: sabotage for sabotage in _ALL}


@contextmanager
def reopened(name: str | None) -> Iterator[type[RaftHost]]:
    """The host class to simulate while a hole is open; the production one when there is no name."""
    if name is None:
        yield RaftHost
        return
    sabotage = SABOTAGES[name]
    with ExitStack() as stack:
        for place in sabotage.places:
            module, _, attribute = place.partition(".")
            stack.enter_context(
                patch.object(importlib.import_module(f"node.raft.{module}"), attribute, sabotage.broken)
            )
        yield sabotage.host_class()
