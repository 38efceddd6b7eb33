"""Rules taken out again, one at a time: each sabotage reopens one hole that the replicated log closes.

The simulation must find every one of them; what it takes is told in docs/simulation.md. Nothing here is ever
imported by the product.
"""

from __future__ import annotations

import importlib
from unittest.mock import patch

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.rules.replica_state import Part
from tests.raft.group_with import group_with
from tests.simulation.log import sabotaged_parts as parts
from tests.simulation.log import sabotaged_rules as rules
from tests.simulation.log.cluster import Cluster
from tests.simulation.log.found_by import FOUND_BY
from tests.simulation.sabotage import Broken, Sabotage, by_name, expecting


def _host_class(broken: type) -> type[RaftHost]:
    """The host in which a group, one of its parts, or the host itself is the broken one."""
    if issubclass(broken, RaftHost):
        return broken
    if issubclass(broken, RaftGroup):
        return type("SabotagedHost", (RaftHost,), {"group_class": broken})
    if issubclass(broken, Part):
        return type("SabotagedHost", (RaftHost,), {"group_class": group_with(broken)})
    return RaftHost


def _hole(name: str, hole: str, broken: type, places: tuple[str, ...] = ()) -> Sabotage:
    """One hole. What is broken is the group, one of its parts, the host, or what `places` names by module."""

    def opened() -> tuple[Broken, ...]:
        named = (place.rpartition(".") for place in places)
        return (
            patch.object(Cluster, "host_class", _host_class(broken)),
            *(
                patch.object(importlib.import_module(f"strandline.node.raft.{module}"), attribute, broken)
                for module, _, attribute in named
            ),
        )

    return Sabotage(name, hole, opened)


_ALL = (
    _hole("ack-before-sync", "acknowledgements leave before fdatasync", parts.AcknowledgesBeforeSync),
    _hole("vote-before-sync", "votes leave before fdatasync", parts.VotesBeforeSync),
    _hole(
        "counts-itself-before-sync",
        "the leader counts itself before its own sync",
        rules.CountsItselfBeforeSync,
    ),
    _hole("vote-not-recorded", "a restarted node may vote twice in a term", rules.VoteNotRecorded),
    _hole(
        "term-not-recorded",
        "terms are not in the log",
        parts.TermNotRecorded,
        ("stored_groups.RaftLog",),
    ),
    _hole(
        "truncation-not-recorded",
        "deleted entries come back with a restart",
        parts.TruncationNotRecorded,
        ("stored_groups.RaftLog",),
    ),
    _hole(
        "failed-sync-ignored",
        "a failed fdatasync counts as a good one",
        parts.IgnoresFailedSync,
        ("host.WriteAheadLog",),
    ),
    _hole("truncates-after-previous", "matching entries are deleted too", rules.TruncatesAfterPrevious),
    _hole("commits-to-own-end", "a follower commits what nobody proved", rules.CommitsToOwnEnd),
    _hole("acks-own-end", "a follower acknowledges what nobody proved", rules.AcknowledgesOwnEnd),
    _hole("replies-across-terms", "a delayed reply counts in a later term", rules.CountsRepliesOfOtherTerms),
    _hole(
        "stale-leader-unanswered",
        "an append of a lower term gets no answer",
        rules.LeavesStaleLeadersUnanswered,
    ),
    _hole(
        "next-moves-back",
        "an acknowledgement sends everything twice",
        parts.MovesNextBack,
        ("rules.roles.Progress", "rules.configuration_log.Progress"),
    ),
    _hole("commits-on-heartbeat", "appends wait for the heartbeat", rules.CommitsOnHeartbeat),
    _hole(
        "no-own-term-rule", "entries of earlier terms are committed by counting", rules.CommitsWithoutOwnTerm
    ),
    _hole("votes-not-voters", "a duplicated vote counts twice", rules.CountsVotesNotVoters),
    _hole("votes-twice", "a node votes for whoever asks last", rules.VotesTwice),
    _hole("ignores-older-logs", "a candidate that lacks entries gets votes", rules.IgnoresOlderLogs),
    _hole("no-pre-vote", "a returning node deposes a healthy leader", rules.CampaignsAtOnce),
    _hole("no-stickiness", "votes are granted while a leader is heard", rules.ForgetsItsLeader),
    _hole(
        "votes-in-told-terms",
        "a term that an answer brought ends a voter's promise to its leader",
        rules.VotesInTermsItWasToldOf,
    ),
    _hole(
        "pre-votes-of-any-round",
        "a pre-vote counts though its voter has heard a leader since",
        rules.CountsPreVotesOfAnyRound,
    ),
    _hole(
        "heartbeat-forgotten",
        "a follower that is woken forgets the shared heartbeat it heard last",
        rules.ForgetsTheSharedHeartbeat,
    ),
    _hole(
        "votes-after-restart",
        "a restarted node helps depose a leader with a lease",
        rules.VotesRightAfterRestart,
    ),
    _hole("no-check-quorum", "a leader that nobody hears leads on", rules.LeadsWithoutQuorum),
    _hole("lease-from-receive-time", "old answers extend a lease", rules.LeaseFromReceiveTime),
    _hole("reads-unconfirmed", "a deposed leader answers reads", rules.ReadsUnconfirmed),
    _hole("reads-before-own-term", "a new leader reads before it knows all", rules.ReadsBeforeOwnTerm),
    _hole("pending-never-ends", "commands of a deposed leader end silently", rules.NeverEndsPending),
    _hole(
        "applies-again", "a callback that raises makes its entry apply again", rules.AppliesAgainAfterError
    ),
    _hole("transfer-by-ordinary-vote", "voters refuse a transfer's target", rules.TransfersByOrdinaryVote),
    _hole("transfer-with-pending", "a transfer leaves outcomes unknown", rules.TransfersWithCommandsPending),
    _hole(
        "lease-kept-in-transfer", "a leader that hands over still answers reads", rules.KeepsLeaseInTransfer
    ),
    _hole("two-changes-at-once", "a second change begins before the first ends", rules.ChangesMembersAtWill),
    _hole(
        "configuration-when-applied",
        "after a restart journalled changes do not count",
        rules.ConfigurationCountsOnceApplied,
    ),
    _hole("snapshot-of-current-members", "a snapshot has later members", rules.SnapshotsCurrentMembers),
    _hole("voter-before-catch-up", "a new member votes at once", rules.AddsVotersAtOnce),
    _hole(
        "log-cleared-on-open",
        "entries above a snapshot vanish with a restart",
        parts.ClearsLogAboveSnapshot,
        ("stored_groups.RecoveredLog",),
    ),
    _hole("older-snapshot-installed", "a late snapshot takes the state back", rules.InstallsOlderSnapshots),
    _hole("suffix-dropped", "installing loses acknowledged entries", rules.DropsMatchingSuffix),
    _hole("suffix-kept", "installing keeps entries that conflict", rules.KeepsConflictingSuffix),
    _hole(
        "damaged-snapshot-swallowed", "a bad snapshot becomes an empty state", parts.SwallowsDamagedSnapshots
    ),
    _hole(
        "snapshot-not-synced",
        "a snapshot replaces entries before it is durable",
        parts.StoresUnsyncedSnapshots,
        ("host.SnapshotStore",),
    ),
    _hole(
        "any-folder",
        "a wiped folder votes under its old node id",
        parts.TakesAnyFolder,
        ("host.Folder",),
    ),
    _hole(
        "folders-in-memory",
        "a node that restarted takes a wiped folder for the one it knew",
        parts.ForgetsTheOthersFolders,
        ("host.Folder",),
    ),
    _hole(
        "segment-dropped-with-vote",
        "a segment goes with the newest vote in it",
        parts.DropsSegmentsWithVotes,
        ("group_services.SegmentUse",),
    ),
    _hole(
        "heartbeat-digest-ignored",
        "a heartbeat refreshes groups its sender does not lead",
        parts.AcceptsAnyHeartbeat,
        ("group_services.SharedHeartbeats",),
    ),
    _hole(
        "silence-unnoticed",
        "followers of quiet groups sleep on when their leader dies",
        parts.WakesNobody,
        ("group_services.SharedHeartbeats",),
    ),
    _hole(
        "records-while-full",
        "a log that cannot be written is tidied each second",
        parts.MovesLogsWhileFull,
        ("group_services.LogRetention",),
    ),
    _hole("terms-while-full", "each new term waits for a full disk", rules.TakesAnyTermWhileFull),
    _hole(
        "answers-while-full", "each answer waits for a full disk", parts.AnswersPileUp, ("records.AfterSync",)
    ),
    _hole(
        "quiet-leader-while-full",
        "quiet groups stay with a leader that takes no command",
        parts.KeepsQuietGroupsWhileFull,
        ("group_services.Ticker",),
    ),
    _hole(
        "stopped-keeps-log",
        "a stopped replica keeps all segments after it",
        parts.CarriesNothing,
        ("group_services.Carrying",),
    ),
)

_FOUND_WITH: dict[str, tuple[int, ...]] = {
    "ack-before-sync": (0, 1, 2),
    "vote-before-sync": (29, 32),
    "counts-itself-before-sync": (0, 1, 2),
    "vote-not-recorded": (0, 1, 3),
    "term-not-recorded": (0, 1, 3),
    "truncation-not-recorded": (13, 21),
    "failed-sync-ignored": (9, 14, 20),
    "truncates-after-previous": (0, 4, 17),
    "commits-to-own-end": (112, 132),
    "acks-own-end": (112, 132),
    "replies-across-terms": (156,),
    "stale-leader-unanswered": (1006,),
    "next-moves-back": (0, 7, 35),
    "commits-on-heartbeat": (0, 1, 2),
    "no-own-term-rule": (5,),
    "votes-not-voters": (17, 35, 57),
    "votes-twice": (22,),
    "ignores-older-logs": (5, 7),
    "no-pre-vote": (2, 9, 16),
    "no-stickiness": (1, 4),
    "votes-in-told-terms": (14, 22, 62),
    "pre-votes-of-any-round": (6, 30, 38),
    "heartbeat-forgotten": (1, 9, 17),
    "votes-after-restart": (76, 92),
    "no-check-quorum": (4, 5, 11),
    "lease-from-receive-time": (74, 116, 151),
    "reads-unconfirmed": (12, 20),
    "reads-before-own-term": (20,),
    "pending-never-ends": (5, 12, 19),
    "applies-again": (8, 10),
    "transfer-by-ordinary-vote": (3, 10, 17),
    "transfer-with-pending": (43, 99),
    "lease-kept-in-transfer": (32, 60, 81),
    "two-changes-at-once": (10, 13, 15),
    "configuration-when-applied": (6, 7, 9),
    "snapshot-of-current-members": (1, 7),
    "voter-before-catch-up": (0, 1, 7),
    "log-cleared-on-open": (0, 3, 4),
    "older-snapshot-installed": (41, 52),
    "suffix-dropped": (99, 112),
    "suffix-kept": (500,),
    "damaged-snapshot-swallowed": (0, 4, 9),
    "snapshot-not-synced": (3, 9, 11),
    "any-folder": (7, 15),
    "folders-in-memory": (7, 15),
    "segment-dropped-with-vote": (12, 14, 16),
    "heartbeat-digest-ignored": (9, 25),
    "silence-unnoticed": (70, 102),
    "records-while-full": (29,),
    "terms-while-full": (29,),
    "answers-while-full": (9, 14),
    "quiet-leader-while-full": (9,),
    "stopped-keeps-log": (207,),
}

SABOTAGES = expecting(by_name(_ALL, _FOUND_WITH).values(), FOUND_BY)
