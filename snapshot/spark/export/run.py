"""Topics to files, round by round: a plan, its files, its manifest, each made once and in this order.

A run that is killed leaves a plan without a manifest. The next run ends that round first, by the plan as it
is, and only then plans another. Where the target has tables, a manifest's files are given to them then. Two
runs at once do the same rounds and find each other's files; neither can lose or double a record. See
docs/export.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from strandline.snapshot.spark.export.documents import (
    DONE,
    FIXED,
    JSON,
    ROUNDS,
    File,
    Manifest,
    Plan,
    Settings,
    done_name,
    done_prefix,
    encode,
    file_name,
    files_of,
    is_exported,
    manifest_name,
    manifest_of,
    plan_name,
    plan_of,
    round_of_done,
    rounds,
)
from strandline.snapshot.spark.export.errors import ExportError, TooManyFolders
from strandline.snapshot.spark.export.formats import open_tables
from strandline.snapshot.spark.export.json_columns import Fields
from strandline.snapshot.spark.export.parquet import Job, found_file
from strandline.snapshot.spark.export.planning import (
    Limits,
    Planner,
    refuse_loss,
    views_of,
    views_there,
)
from strandline.snapshot.spark.export.running import Exported, Runner
from strandline.snapshot.spark.export.target import STATE, Target
from strandline.snapshot.spark.newest import NewestCheckpoints, check_wanted, wanted_places
from strandline.snapshot.spark.options import ReadOptions
from strandline.snapshot.spark.plan import in_order
from strandline.snapshot.spark.views import first_wanted, looked_again, newest_views
from strandline.snapshot.storage import ObjectMissing, Storage


class Export:
    """One target, and topics of one cluster that are exported to it."""

    def __init__(
        self,
        storage: Storage,
        options: ReadOptions,
        target: Target,
        run: Runner,
        *,
        settings: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        accept_loss: bool = False,
        catalog: Mapping[str, str] | None = None,
        columns: Mapping[str, Fields] | None = None,
    ) -> None:
        """`settings` are some of those of Settings; a target keeps what it was begun with.

        `catalog` is for `open_tables`; `columns` are given for values of topics.

        Raises ExportError, SourceError, StorageError, ExtraMissing.
        """
        self._storage = storage
        self._options = options
        self._target = target
        self._run = run
        self._accept_loss = accept_loss
        self._checkpoints = NewestCheckpoints(storage, options.cluster)
        target.sweep()
        planned, ended = rounds(target.list(ROUNDS))
        self._round = max(ended, default=0)
        """The newest round that has happened."""
        self._check_rounds(planned, ended)
        self._newest = self._manifest(self._round) if self._round else None
        self._settings = self._agreed(settings or {}, planned)
        if columns and self._settings.value != JSON:
            raise ExportError("--columns is of --value json", "say so too, or export to another place")
        by = self._settings.partition_by
        if by not in FIXED and self._settings.value != JSON:
            raise ExportError(
                f"--partition-by {by} is a column of values, and they are bytes",
                f"give --value json too, or one of {', '.join(FIXED)}",
            )
        self._tables = open_tables(self._settings, target, catalog or {})
        if not planned:
            try:
                self._check_nothing_there()
            except ExportError:
                if not rounds(target.list(ROUNDS))[0]:
                    raise  # otherwise another first run has begun meanwhile, and what is there is its
        elif self._newest is not None:
            self._check_cluster(self._newest.plan)
        self._planner = Planner(
            storage,
            self._checkpoints.cluster,
            self._settings,
            limits or Limits(),
            partial(first_wanted, storage, options),
            accept_loss=accept_loss,
            given=columns or {},
        )

    def _check_rounds(self, planned: set[int], ended: set[int]) -> None:
        wanted = set(range(1, self._round + 1))
        if wanted <= planned & ended:
            return
        # A listing that another run writes below may have a later round, and lack one before it.
        planned, ended = rounds(self._target.list(ROUNDS))
        for number in sorted(wanted - (planned & ended)):
            name = manifest_name(number) if number in planned else plan_name(number)
            raise ExportError(f"{self._target.url}: {name} is missing", "restore it, or export elsewhere")

    def _check_nothing_there(self) -> None:
        """Raise ExportError for files of an export whose documents are gone: it would write them again."""
        for path in self._target.list(""):
            if is_exported(path):
                raise ExportError(
                    f"{self._target.url} has {path} of an export whose documents are gone",
                    f"restore {STATE}, empty the place, or export to another",
                )
        if self._tables is not None:
            self._tables.check_new(self._options.topics)

    def _check_cluster(self, plan: Plan) -> None:
        if plan.cluster not in (None, self._checkpoints.cluster):
            raise ExportError(
                f"{self._target.url} has topics of cluster {plan.cluster}, and these are of "
                f"{self._checkpoints.cluster}",
                "export each cluster to a place of its own",
            )

    def _agreed(self, wanted: Mapping[str, str], planned: set[int]) -> Settings:
        found = None
        if self._newest is not None:
            found = self._newest.plan.settings
        elif 1 in planned:
            found = plan_of(plan_name(1), self._target.get(plan_name(1))).settings
        if found is None:
            return Settings(**wanted)
        self._check_settings(found, wanted)
        return found

    def _check_settings(self, found: Settings, wanted: Mapping[str, str]) -> None:
        for name, value in wanted.items():
            if (begun := getattr(found, name)) != value:
                raise ExportError(
                    f"{self._target.url} was begun with --{name.replace('_', '-')} {begun}",
                    "say the same, or export to another place",
                )

    def run(
        self,
        tell: Callable[[Exported, int, int], None] = lambda *_: None,
        stopped: Callable[[], bool] = bool,
        done: Exported | None = None,
    ) -> Exported:
        """Export all that is published and the target has not; again and again, if so called.

        `tell` is called with what was done so far, and of the round under way the units done and all. Once
        it is `stopped` it ends after the units that are under way: the next run goes on with the others.
        `done` is what it adds to, and returns. Raises ExportError, SourceError, StorageError, BadObject; the
        rounds that `done` has by then have happened, and another call goes on behind them.
        """
        done = Exported() if done is None else done
        if self._newest is not None:
            self._commit(self._newest)
        self._forget_done()
        while not stopped():
            number = self._round + 1
            plan, resumed = self._planned(number), True
            if plan is None:
                plan, resumed = self._plan(number)
            if plan is None:
                return done
            if resumed:
                self._check_cluster(plan)
                self._check_settings(plan.settings, asdict(self._settings))  # of two first runs at once
            if resumed and manifest_name(number) in self._target.list(ROUNDS):
                self._newest = self._manifest(number)  # another run has ended it
                self._commit(self._newest)
            else:
                ended = self._ended(plan, resumed, partial(tell, done), stopped)
                if ended is None:
                    break
                self._newest = ended
                done.resumed |= resumed
                done.add(ended)
                self._commit(ended)
            self._round = number
            self._forget_done()
        return done

    @property
    def compacts(self) -> bool:
        """Whether small files of this target can be compacted."""
        return self._tables is not None and self._tables.compacts

    def compact(self) -> int:
        """Put large files in the place of the topics' small ones; returns how many small ones there were.

        Raises ExportError.
        """
        return sum(map(self._tables.compact, self._options.topics)) if self._tables is not None else 0

    def _commit(self, manifest: Manifest) -> None:
        """Show a round's files to readers of the tables, where the target has tables; once if repeated."""
        if self._tables is not None:
            self._tables.commit(manifest)

    def _planned(self, number: int) -> Plan | None:
        name = plan_name(number)
        return plan_of(name, self._target.get(name)) if name in self._target.list(ROUNDS) else None

    def _plan(self, number: int) -> tuple[Plan | None, bool]:
        """Plan a round and write it down, None with nothing new; whether another run's plan was first."""
        self._checkpoints.look(whole=True)
        plan = looked_again(self._checkpoints, partial(self._next, number))
        if plan is None or self._target.create(plan_name(number), encode(plan)):
            return plan, False
        return self._planned(number), True

    def _next(self, number: int) -> Plan | None:
        state = self._checkpoints.controller()
        check_wanted(state, self._options)
        views = newest_views(self._checkpoints, wanted_places(state, self._options), self._options.committed)
        last = None if self._newest is None else self._newest.plan
        return self._planner.next_round(number, last, state.by_name, views)

    def _ended(
        self, plan: Plan, resumed: bool, tell: Callable[[int, int], None], stopped: Callable[[], bool]
    ) -> Manifest | None:
        """Write a plan's files, then its manifest; None if it was stopped before all files are there."""
        ended = self._already_written(plan) if resumed else {}
        left = {number: unit for number, unit in enumerate(plan.units) if number not in ended}
        there = partial(views_there, self._storage, self._checkpoints, plan, [*left.values()])
        views, lost = looked_again(self._checkpoints, partial(there, committed=self._options.committed))
        refuse_loss(lost, self._accept_loss)
        jobs = [
            Job(self._storage, self._target, plan, number, in_order(views_of(unit, views)))
            for number, unit in left.items()
        ]
        files = [file for unit in ended.values() for file in unit]
        tell(len(ended), len(plan.units))
        try:
            for count, made in enumerate(self._run(jobs), len(ended) + 1):
                files += made
                tell(count, len(plan.units))
                if count < len(plan.units) and stopped():
                    return None
        except TooManyFolders:
            self._withdraw(plan)
            raise
        if resumed:
            files += self._left_behind(plan, files)
        ordered = tuple(sorted(files, key=lambda file: (file.unit, file.path)))
        manifest = Manifest(plan, ordered, (*plan.lost, *lost))
        if self._target.create(manifest_name(plan.round), encode(manifest)):
            return manifest
        first = self._manifest(plan.round)
        # Of records that were deleted meanwhile this run may have seen more than the one that was first.
        for file in self._left_behind(plan, first.files):
            self._target.delete(file.path)
        return first

    def _already_written(self, plan: Plan) -> dict[int, tuple[File, ...]]:
        """The files of the units that an earlier run has ended, by their position in the plan."""
        found: dict[int, tuple[File, ...]] = {}
        there = set(self._target.list(done_prefix(plan.round)))
        paths = set(self._target.list("")) if there else set()
        for number in range(len(plan.units)):
            key = done_name(plan.round, number)
            if key in there:
                try:
                    files = files_of(key, self._target.get(key))
                except ObjectMissing:
                    continue  # another run has ended the round meanwhile, and its manifest counts
                if paths.issuperset(file.path for file in files):
                    found[number] = files
                else:
                    self._target.delete(key)  # an engine swept the table's folder of what no commit had yet
        if plan.settings.partition_by == "none":
            # A unit is one file. Where that is there, nothing has to be read of the unit, or is missed.
            for file in self._left_behind(plan, [one for files in found.values() for one in files]):
                found.setdefault(file.unit, (file,))
        return found

    def _withdraw(self, plan: Plan) -> None:
        """Leave the target as it was before a round that cannot be done: by the same plan it never could.

        The plan goes last, so that a run that is killed here is followed by one that does this again.
        """
        for file in self._left_behind(plan, []):
            self._target.delete(file.path)
        for key in self._target.list(done_prefix(plan.round)):
            self._target.delete(key)
        self._target.delete(plan_name(plan.round))

    def _left_behind(self, plan: Plan, files: Sequence[File]) -> list[File]:
        """Files of the round that an earlier run wrote, and for which there were no records any more.

        They were deleted from the topic in between, or compacted away. They were exported all the same.
        """
        known_paths = {file.path for file in files}
        names = {file_name(plan.round, number): number for number in range(len(plan.units))}
        found = []
        for path in self._target.list(""):
            number = names.get(path.rpartition("/")[2])
            if number is not None and path not in known_paths:
                found.append(found_file(plan, number, path, self._target.get(path)))
        return found

    def _manifest(self, number: int) -> Manifest:
        return manifest_of(manifest_name(number), self._target.get(manifest_name(number)))

    def _forget_done(self) -> None:
        """Remove what was written down of units whose round has a manifest by now."""
        for key in self._target.list(DONE):
            number = round_of_done(key)
            if number is not None and number <= self._round:
                self._target.delete(key)
