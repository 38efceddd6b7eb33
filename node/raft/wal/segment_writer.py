"""Writes the log's batches into its segments, and goes from one segment to the next. Runs in the executor.

docs/wal.md argues why a crash between any two of these disk operations is harmless.
"""

from __future__ import annotations

from strandline.node.raft.disk import Disk, DiskFile
from strandline.node.raft.wal.batch import WalBatch
from strandline.node.raft.wal.recovery import Recovered
from strandline.node.raft.wal.segment import (
    create_segment,
    drop_segments,
    mark_synced,
    seal_segment,
    sync,
    write_synced,
)


class SegmentWriter:
    """The segment that is written, and the next one. One call at a time.

    A call that raises OSError because the disk is full may be repeated; after any other error none may follow
    but `close`.
    """

    def __init__(self, disk: Disk, folder: str, recovered: Recovered) -> None:
        self._disk = disk
        self._folder = folder
        self._file = recovered.file
        self._sequence = recovered.header.sequence
        self._next_file: DiskFile | None = None

    def write(self, batch: WalBatch) -> None:
        """Write and sync a batch; raises WalFailed if the sync fails."""
        if self._sequence != batch.header.sequence:
            self._roll_over(batch)
        write_synced(self._file, b"".join(batch.parts), batch.start)
        mark_synced(self._file, batch.seed, batch.end)

    @property
    def is_deleted(self) -> bool:
        """Whether the current segment was deleted while it is written. Asks no disk."""
        try:
            return self._file.is_deleted()
        except OSError:  # closed by now, for the next segment
            return False

    def drop(self, upto: int) -> None:
        """Remove every segment numbered below `upto`; a TRIM saying so must be durable."""
        drop_segments(self._disk, self._folder, upto)

    def close(self, *, failed: bool) -> None:
        """Close the files; after a failure without another sync."""
        if not failed:
            # Takes the last MARK to the disk: after a clean stop no damage passes for a torn tail.
            sync(self._file)
        self._file.close()
        if self._next_file is not None:
            self._next_file.close()

    def _roll_over(self, batch: WalBatch) -> None:
        assert batch.seal is not None, "the first batch of a segment knows where the older one ends"
        if self._next_file is None:
            self._next_file = create_segment(self._disk, self._folder, batch.header)
        seal_segment(self._file, *batch.seal)
        self._file.close()
        self._file, self._next_file = self._next_file, None
        self._sequence = batch.header.sequence
