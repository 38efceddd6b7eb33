"""Fills one local log from level one: the plan, the job, and what becomes of its result."""

from __future__ import annotations

from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.compactor import IngestJob, JobFailed, Why
from strandline.node.compaction.context import CompactionContext
from strandline.node.compaction.ingest_plan import joined, packed_rows, waiting
from strandline.node.compaction.log_problems import Work
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.statemachine.partition.level_one import level_one_name


class LogFilling:
    """One per node. Everything belongs on the context's loop."""

    def __init__(self, context: CompactionContext, measures: CompactionMeasures) -> None:
        self._context = context
        self._measures = measures

    async def fill(self, owner: ReplicaLog) -> None:
        """Plan from one version of the state, have the segment made, and swap it in if all still holds."""
        machine = owner.replica.machine
        it = owner.log
        assert it is not None, "only open logs are filled"
        # The floors are durable before the first byte is read: what is read may lack what was removed by now.
        if not it.manifest.segments and not await owner.raise_floors():
            return
        planned = waiting(it.manifest, machine, self._context.config.compaction.segment_bytes)
        if planned is None or not owner.in_step():
            return
        removals, frozen = machine.removals, machine.aborted.frozen()
        before = it.manifest.segments[-1:]
        least = self._context.config.compaction.ingest_bytes
        if before and not joined(before[0], it.manifest, planned.bytes, least):
            before = ()
        rows = await self._context.loop.run_in_executor(
            self._context.log_executor, packed_rows, frozen, planned.first_offset, planned.end_offset
        )
        job = IngestJob(
            owner.place,
            it.next_number(),
            before[0] if before else None,
            planned.first_offset,
            not it.manifest.segments,
            planned.end_offset,
            planned.sources,
            rows,
            self._context.wall_ms(),
            self._context.config.compaction.segment_bytes,
            self._context.config.level_one.block_bytes,
        )
        made = await self._context.compactor.ingest(job)
        if owner.log is not it:
            # The replica has left this node meanwhile, or its topic is not compacted any more.
            self._measures.abandoned += 1
            await owner.discard(it, [job.number])
        elif isinstance(made, JobFailed):
            self._failed(owner, job, made)
            await owner.discard(it, [job.number])
        elif machine.removals is not removals or not owner.in_step():
            # A snapshot of the state was installed meanwhile, or the log has to be reset.
            self._measures.abandoned += 1
            await owner.discard(it, [job.number])
        else:
            segments = it.manifest.segments
            kept = segments[:-1] if before else segments
            clean_end = it.manifest.clean_end if segments else made.segment.base_offset
            if await owner.replace([*kept, made.segment], clean_end):
                owner.problems.worked(Work.FILL)
                self._measures.ingests += 1
                self._measures.ingested_bytes += made.read_bytes
                self._measures.ingest_written_bytes += made.segment.size

    def _failed(self, owner: ReplicaLog, job: IngestJob, failed: JobFailed) -> None:
        self._measures.failed += 1
        if failed.why is Why.DAMAGED:
            owner.damaged(failed.reason)
            return
        if failed.why is Why.GONE and owner.problems.overtaken(Work.FILL):
            # Level one was merged or published meanwhile; the next plan is by the state of then.
            return
        if failed.why in (Why.DISK, Why.LOST):
            reason = "the local log cannot be filled"
        else:
            reason = "level one cannot be read into the local log"
        owner.problems.failed(Work.FILL, f"{reason}: {failed.reason}")
        identity = owner.place.identity
        for one in job.sources:
            name = level_one_name(identity.topic_id, identity.partition, one.term, one.unique)
            if name == failed.unreadable and one.unique in owner.replica.machine.level_one:
                self._context.unreadable.tell(owner.replica.group.id, one.unique)
