"""Decides whether a round of cleaning is due: pure functions of the manifest, the topic and the time."""

from __future__ import annotations

from typing import NamedTuple

from strandline.node.compaction.manifest import NONE, Manifest
from strandline.statemachine.controller.settings import LONG_MAX, Configs
from strandline.statemachine.controller.topic_config import (
    MAX_COMPACTION_LAG_MS,
    MIN_CLEANABLE_DIRTY_RATIO,
    MIN_COMPACTION_LAG_MS,
)


class Tally(NamedTuple):
    """Sums over the segments of a log."""

    clean_bytes: int
    dirty_bytes: int
    """Of the segments from `clean_end` on."""
    oldest_dirty: int | None
    """Unix milliseconds since which the oldest record that is not clean waits."""
    lowest_tombstone: int
    """Of the clean part, or NONE."""
    lowest_marker: int

    @property
    def dirty_ratio(self) -> float:
        """Kafka's: the part of the log that is not clean, by bytes."""
        size = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / size if size else 0.0


def tally(manifest: Manifest) -> Tally:
    """Count up a log's segments."""
    clean = [one for one in manifest.segments if one.end_offset <= manifest.clean_end]
    dirty = [one for one in manifest.segments[len(clean) :] if one.records]
    return Tally(
        sum(one.size for one in clean),
        sum(one.size for one in dirty),
        min((one.ingested_at for one in dirty), default=None),
        min((one.lowest_tombstone for one in clean if one.lowest_tombstone != NONE), default=NONE),
        min((one.lowest_marker for one in clean if one.lowest_marker != NONE), default=NONE),
    )


def overdue(told: Tally, configs: Configs, now_ms: int) -> bool:
    """Whether a record has waited for `max.compaction.lag.ms`."""
    longest = MAX_COMPACTION_LAG_MS.of(configs)
    return told.oldest_dirty is not None and longest < LONG_MAX and told.oldest_dirty + longest <= now_ms


def round_is_due(told: Tally, configs: Configs, ripe: tuple[int, int], now_ms: int) -> bool:
    """Whether a round of cleaning would do what the topic asks for.

    As Kafka (LogCleanerManager): more of the log than the ratio is not clean, so never by a ratio of 1, or
    something has waited for too long. And `ripe` tombstones, or markers, are in the clean part.
    """
    tombstones, markers = ripe
    return (
        (told.dirty_bytes > 0 and told.dirty_ratio > MIN_CLEANABLE_DIRTY_RATIO.of(configs))
        or overdue(told, configs, now_ms)
        or NONE < told.lowest_tombstone < tombstones
        or NONE < told.lowest_marker < markers
    )


def newest_cleanable(configs: Configs, now_ms: int) -> int | None:
    """The newest timestamp that may be cleaned, by `min.compaction.lag.ms`; None for any."""
    shortest = MIN_COMPACTION_LAG_MS.of(configs)
    return now_ms - shortest if shortest else None
