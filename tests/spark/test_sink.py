"""The sink on real nodes: each batch once, whatever is killed when. Spark itself is in test_sink_spark.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from strandline import TemporaryCluster, local_cluster
from strandline.snapshot.connection import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
)
from strandline.snapshot.producing.brokers import Brokers
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.transactions import (
    COMMITTING,
    Described,
    Producer,
    describe,
    end,
    open_ids,
)
from strandline.snapshot.spark.sink import batch, driver, progress, record_writer
from strandline.snapshot.spark.sink.batch import Identity, claimed
from strandline.snapshot.spark.sink.driver import DriverSink
from strandline.snapshot.spark.sink.progress import Ledger, Prepared, Progress, is_task_id
from tests.spark.sink_play import Killed, Life, Play, Rows, lived, values

TOPIC = "sunk"
CHANGES = (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, PRODUCE, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN)
"""Requests that change something: a kill before one that only reads is a kill before the next of these."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TemporaryCluster]:
    with local_cluster(nodes=3) as running:
        running.create_topic(TOPIC, partitions=3)
        yield running


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    with lived(monkeypatch) as counted:
        yield counted


def rows(query: str, count: int = 20) -> Rows:
    return lambda batch, task: [f"{query}:{batch}:{task}:{number}" for number in range(count)]


def play(cluster: TemporaryCluster, query: str, tasks: int = 2, **options: str) -> Play:
    return Play(cluster.bootstrap, TOPIC, query, rows(query), tasks, **options)


def once(played: Play, batches: int, tasks: int = 2) -> Counter[str]:
    return Counter(
        value for batch in range(batches) for task in range(tasks) for value in played.rows(batch, task)
    )


def read(cluster: TemporaryCluster, *queries: str) -> Counter[str]:
    found = values(cluster.bootstrap, TOPIC)
    return Counter({value: count for value, count in found.items() if value.split(":")[0] in queries})


def left_open(cluster: TemporaryCluster, played: Play) -> list[str]:
    with Brokers(played.options.bootstrap, 20) as brokers:
        return open_ids(brokers, lambda one: is_task_id(played.query, one))


def test_a_process_killed_at_any_request(cluster: TemporaryCluster, life: Life) -> None:
    first = play(cluster, "kill")
    first.batch()
    steps = [number for number, api in enumerate(life.sent) if api in CHANGES]
    assert len(steps) >= 15
    expected, queries, skipped = once(first, 1), ["kill"], 0
    for step in steps:
        for unread in (False, True):
            played = play(cluster, f"kill-{step}-{unread}")
            queries.append(played.query)
            life.begin(step, unread=unread)
            with pytest.raises(Killed):
                played.batch()
            life.begin()
            played.start()
            played.batch()
            skipped += PRODUCE not in life.sent
            expected += once(played, 1)
    assert read(cluster, *queries) == expected
    assert 2 <= skipped < len(steps), "some were decided before the kill, others not"
    assert left_open(cluster, first) == []


def test_an_executor_killed_at_any_request_of_its_task(cluster: TemporaryCluster, life: Life) -> None:
    """Spark runs the task again elsewhere, while the driver and the other tasks go on."""
    first = play(cluster, "executor")
    done, sent = first.task(0, 0), list(life.sent)
    first.commit([done, first.task(0, 1)])  # what stays open would keep the reader from all behind it
    steps = [number for number, api in enumerate(sent) if api in CHANGES]
    assert {sent[step] for step in steps} >= {INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, PRODUCE}
    expected, queries = Counter[str](), []
    for step in steps:
        for unread in (False, True):
            played = play(cluster, f"executor-{step}-{unread}")
            queries.append(played.query)
            life.begin(step, unread=unread)
            with pytest.raises(Killed):
                played.task(0, 0)
            life.begin()
            other = played.task(0, 1)
            played.commit([played.task(0, 0, attempt=1), other])
            assert left_open(cluster, played) == []
            expected += once(played, 1)
    assert read(cluster, *queries) == expected


@pytest.mark.parametrize("checked", [True, False])
def test_a_batch_that_is_replayed_is_doubled_only_without_the_check_of_its_number(
    cluster: TemporaryCluster, life: Life, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """What a driver leaves that is killed when a batch is written and Spark has not noted that; and that the
    judge of these tests sees records that are there twice."""
    played = play(cluster, f"replayed-{checked}")
    played.batch()
    if not checked:
        own = DriverSink._own_progress

        def unknown(options: Any, brokers: Any, ledger: Any, identity: Any, turn: int) -> Progress:
            return replace(claimed(options, brokers, ledger, identity, turn), next_batch=identity.batch)

        def as_new(self: DriverSink, brokers: Any, ledger: Any, done: Any) -> Progress:
            return replace(own(self, brokers, ledger, done), next_batch=done[0].identity.batch)

        monkeypatch.setattr("strandline.snapshot.spark.sink.task.claimed", unknown)
        monkeypatch.setattr(DriverSink, "_own_progress", as_new)
    played.start()
    played.done = 0
    played.batch()
    found = read(cluster, played.query)
    assert found.keys() == once(played, 1).keys()
    assert set(found.values()) == {1 if checked else 2}


def test_a_number_that_is_left_out_after_a_kill_is_there_as_a_whole_or_not_at_all(
    cluster: TemporaryCluster, life: Life
) -> None:
    """The tasks of the next number take the transactional ids of what was decided, and not yet committed."""
    first = play(cluster, "numbered", tasks=3)
    first.batch()
    steps = [number for number, api in enumerate(life.sent) if api in CHANGES][-6:]
    whole = 0
    for step in steps:
        played = play(cluster, f"numbered-{step}", tasks=3)
        played.consecutive, played.spark_id, played.done = False, "", 4
        life.begin(step)
        with pytest.raises(Killed):
            played.batch()
        life.begin()
        played.start()
        played.done = 7
        played.batch()
        found = read(cluster, played.query)
        killed, later = (
            Counter(value for task in range(3) for value in played.rows(batch, task)) for batch in (4, 7)
        )
        assert found in (later, killed + later)
        whole += found != later
    assert 2 <= whole < len(steps), "some were decided before the kill, others not"


def test_a_number_comes_long_after_the_one_before_whose_transactional_ids_are_forgotten(
    cluster: TemporaryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go by `transactions.id_expiration_seconds`, and the progress by another time."""
    played = Numbered(cluster.bootstrap, TOPIC, "monthly", rows("monthly"), 2)
    done = [played.task(0, number) for number in range(2)]
    played.commit(done)
    forgotten = {(one.prepared.producer_id, one.prepared.epoch) for one in done if one.prepared}

    def ended(brokers: Brokers, producer: Producer, *, commit: bool) -> None:
        if (producer.producer_id, producer.epoch) in forgotten:
            raise Fenced("invalid_producer_id_mapping")
        end(brokers, producer, commit=commit)

    monkeypatch.setattr(batch, "end", ended)
    monkeypatch.setattr(batch, "describe", lambda brokers, ids: dict.fromkeys(ids, Described("", -1, -1)))
    played.commit([played.task(0, number) for number in range(2)])  # it is there
    played.start()
    played.batch()
    assert read(cluster, "monthly") == once(played, 2)


def test_the_next_batch_and_a_batch_with_nothing(cluster: TemporaryCluster, life: Life) -> None:
    played = play(cluster, "next")
    for _ in range(2):
        played.batch()
    full, played.rows = played.rows, lambda batch, task: []
    played.batch()
    played.start()
    played.batch()
    assert played.done == 4
    played.rows = full
    played.batch()
    assert read(cluster, "next") == once(played, 2) + Counter(
        value for task in range(2) for value in full(4, task)
    )


def test_attempts_of_a_task_do_not_fence_each_other(cluster: TemporaryCluster, life: Life) -> None:
    played = play(cluster, "retried")
    other = played.task(0, 1)
    first = played.task(0, 0)
    played.task(0, 0, attempt=1)  # speculative, and as far as the first
    assert len(left_open(cluster, played)) == 3
    played.commit([first, other])
    assert left_open(cluster, played) == []
    played.task(1, 0)  # this one's process is gone
    played.commit([played.task(1, 0, attempt=1), played.task(1, 1)])
    assert read(cluster, "retried") == once(played, 2)


def test_a_driver_that_wakes_up_too_late_decides_nothing(cluster: TemporaryCluster, life: Life) -> None:
    old, new = play(cluster, "zombie"), play(cluster, "zombie")
    done = [old.task(0, number) for number in range(2)]

    def wakes_after(api: Api, request: Any) -> None:
        if api == ADD_OFFSETS_TO_TXN:
            life.on_request = lambda api, request: None
            new.batch()

    life.on_request = wakes_after
    with pytest.raises(SinkError, match="batch 0 of query zombie: another run of this query has taken over"):
        old.commit(done)
    with pytest.raises(SinkError, match="another run of this query has taken over"):
        old.commit(done)
    new.batch()
    assert read(cluster, "zombie") == once(new, 2)


def test_a_batch_that_is_replayed_amid_the_next_one_is_not_written_again(
    cluster: TemporaryCluster, life: Life
) -> None:
    """Its transactional ids are those of the next one by then: nothing tells that its records are there."""
    played = play(cluster, "amid")
    played.batch()
    following = [played.task(1, number) for number in range(2)]
    life.begin()
    with pytest.raises(SinkError, match="it cannot be told whether they are"):
        play(cluster, "amid").task(0, 0)
    assert PRODUCE not in life.sent
    with pytest.raises(SinkError, match="another run of this query has taken over"):
        played.commit(following)
    played.start()
    played.batch()
    assert read(cluster, "amid") == once(played, 2)


def test_an_abort_after_a_failed_commit_leaves_what_was_decided(
    cluster: TemporaryCluster, life: Life
) -> None:
    played = play(cluster, "abort")
    done = [played.task(0, number) for number in range(2)]
    life.begin()
    life.on_request = _fails_at(TXN_OFFSET_COMMIT)
    with pytest.raises(SinkError):  # nothing is decided
        played.commit(done)
    life.on_request = lambda api, request: None
    assert left_open(cluster, played) == []
    played.start()
    done = [played.task(0, number) for number in range(2)]
    life.begin()
    life.on_request = _fails_at(END_TXN, after=1)
    with pytest.raises(SinkError):  # the decision is made, and not carried out
        played.commit(done)
    life.on_request = lambda api, request: None
    played.start()
    life.begin()
    played.batch()
    assert PRODUCE not in life.sent
    assert read(cluster, "abort") == once(played, 1)


def _fails_at(wanted: Api, after: int = 0) -> Any:
    seen = 0

    def fails(api: Api, request: Any) -> None:
        nonlocal seen
        commits = getattr(request, "committed", True)
        if api == wanted and commits:
            seen += 1
            if seen > after:
                raise SinkError("as told")

    return fails


def test_another_number_of_tasks_after_the_decision(cluster: TemporaryCluster, life: Life) -> None:
    played = play(cluster, "recut", tasks=3)
    _killed_after_decision(played, life)
    wanted = once(played, 1, tasks=3)
    played.start()
    played.tasks, cut = 2, sorted(wanted)
    played.rows = lambda batch, task: cut[task::2]
    life.begin()
    played.batch()
    assert PRODUCE not in life.sent
    assert read(cluster, "recut") == wanted


class Numbered(Play):
    """A program that numbers its writes by itself, and may leave some out."""

    def identity(self, batch: int) -> Identity:
        return Identity(self.query, self.run, batch)


@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_a_numbered_write_that_was_decided_is_carried_out_before_a_later_one(
    cluster: TemporaryCluster, life: Life, tasks: int
) -> None:
    """The later one's tasks begin with the transactional ids that the decision names."""
    name = f"numbered-{tasks}"
    played = Numbered(cluster.bootstrap, TOPIC, name, rows(name), 2)
    _killed_after_decision(played, life)
    wanted = once(played, 1)
    assert read(cluster, name) != wanted, "its commits were left out"
    life.begin()
    played.start()
    if tasks:
        played.task(5, 0)  # and this process is gone
        played.start()
        life.begin()
        played.batch()
        assert PRODUCE not in life.sent, "the write before may come again as long as no later one is decided"
        played.start()
    full, played.tasks, played.done = played.rows, tasks or 1, 5
    if not tasks:
        played.rows = lambda batch, task: []
    played.batch()
    wanted += Counter(value for task in range(tasks) for value in full(5, task))
    assert read(cluster, name) == wanted
    assert left_open(cluster, played) == []


def test_a_numbered_write_whose_decision_was_not_carried_out_in_time_is_not_passed_over(
    cluster: TemporaryCluster, life: Life
) -> None:
    played = Numbered(cluster.bootstrap, TOPIC, "overdue", rows("overdue"), 2)
    _killed_after_decision(played, life)
    first = left_open(cluster, played)[0]
    with Brokers(played.options.bootstrap, 20) as brokers:
        end(brokers, _producer(brokers, first), commit=False)
    played.start()
    played.done = 1
    with pytest.raises(
        SinkError, match=r"batch 1 of query overdue comes behind 0, .* 1 of whose 2 .*write 0"
    ):
        played.batch()
    played.done = 0
    for _ in range(2):
        played.start()
        played.batch()
    assert read(cluster, "overdue") == once(played, 2)


def test_a_number_is_one_write_whatever_its_topic(cluster: TemporaryCluster) -> None:
    """It was passed over as written, where a program wrote to two topics under one name."""
    other = f"{TOPIC}-too"
    cluster.create_topic(other, partitions=3)
    first = Numbered(cluster.bootstrap, TOPIC, "two-topics", rows("two-topics"), 2)
    second = Numbered(cluster.bootstrap, other, "two-topics", rows("two-topics"), 2)
    first.batch()
    said = f"batch 0 of query two-topics was written under topic {TOPIC}, and comes for {other} now"
    full = second.rows
    for second.rows in (full, lambda batch, task: []):
        with pytest.raises(SinkError, match=said):
            second.batch()
    second.rows, second.done = full, 1
    second.start()
    second.batch()
    assert values(cluster.bootstrap, other) == once(second, 2) - once(second, 1)
    assert read(cluster, "two-topics") == once(first, 1)


def test_a_number_for_another_topic_that_came_to_nothing_leaves_what_is_known_of_the_one_before(
    cluster: TemporaryCluster, life: Life
) -> None:
    """The program begins again behind the number that was decided, or with that: it was doubled, or, for the
    other topic, passed over."""
    other, name = f"{TOPIC}-besides", "besides"
    cluster.create_topic(other, partitions=3)
    first = Numbered(cluster.bootstrap, TOPIC, name, rows(name), 2)
    second = Numbered(cluster.bootstrap, other, name, rows(name), 2)
    _killed_after_decision(first, life)
    DriverSink(second.options).abort([second.task(1, number) for number in range(2)])
    for _ in range(2):
        first.start()
        first.done = 0
        first.batch()
    second.start()
    DriverSink(second.options).abort([second.task(1, number) for number in range(2)])
    second.start()
    with pytest.raises(
        SinkError, match=f"batch 0 of query {name} was written under topic {TOPIC}, and comes"
    ):
        second.batch()
    assert read(cluster, name) == once(first, 1)
    second.done = 1
    second.start()
    second.batch()
    assert values(cluster.bootstrap, other) == once(second, 2) - once(second, 1)


@pytest.mark.parametrize("looks", [0, 3, None])
def test_a_program_reads_what_it_has_written(
    cluster: TemporaryCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    looks: int | None,
) -> None:
    """Markers come after a broker's answer: `looks` times they are not there yet, or never."""
    name, asked, ended = f"looks-{looks}", list[int](), list[Producer]()

    def told(brokers: Brokers, ids: list[str]) -> dict[str, Described]:
        states = describe(brokers, ids)
        if not ended:
            return states
        asked.append(len(ids))
        late = looks is None or len(asked) <= looks
        return {one: replace(state, state=COMMITTING) for one, state in states.items()} if late else states

    def told_end(brokers: Brokers, producer: Producer, *, commit: bool) -> None:
        ended.append(producer)
        end(brokers, producer, commit=commit)

    monkeypatch.setattr(driver, "describe", told)
    monkeypatch.setattr(batch, "end", told_end)
    monkeypatch.setattr(driver, "READERS_SECONDS", 0.5)
    played = Numbered(cluster.bootstrap, TOPIC, name, rows(name), 2)
    played.batch()
    assert len(asked) > (looks or 0)
    assert (
        f"batch 0 of query {name} is written, and consumers see it later: the cluster is still to complete 2"
        in caplog.text
    ) is (looks is None)
    assert read(cluster, name) == once(played, 1)
    asked.clear()
    ended.clear()
    play(cluster, f"stream-{name}").batch()
    assert not asked, "a stream does not wait"


def _producer(brokers: Brokers, name: str) -> Producer:
    state = describe(brokers, [name])[name]
    return Producer(name, state.producer_id, state.epoch)


@pytest.mark.parametrize("count", [19, 21])
def test_a_batch_of_another_query_of_the_name_is_not_taken_for_one_that_is_there(
    cluster: TemporaryCluster, count: int
) -> None:
    name = f"shared-{count}"
    first, second = play(cluster, name), play(cluster, name)
    second.rows = rows(name, count)
    first.batch()
    said = f"batch 0 of query {name} was written with 40 records, and has {2 * count} now: two queries share"
    with pytest.raises(SinkError, match=said):
        second.batch()
    second.options = replace(second.options, accept_loss=True)
    second.batch()
    assert read(cluster, name) == once(first, 1)


def _killed_after_decision(played: Play, life: Life) -> None:
    """The process is killed before the first transaction is committed."""
    done = [played.task(played.done, number) for number in range(played.tasks)]
    life.begin()
    decided = [0]

    def after_decision(api: Api, request: Any) -> None:
        if api == END_TXN:
            decided[0] += 1
            if decided[0] == 2:
                life.die_at = len(life.sent)

    life.on_request = after_decision
    with pytest.raises(Killed):
        played.commit(done)
    life.on_request = lambda api, request: None
    life.begin()


def test_transactions_that_time_out_after_the_decision_are_written_again(
    cluster: TemporaryCluster, life: Life
) -> None:
    late = play(cluster, "late", transactionTimeoutSeconds="3")
    changed = play(cluster, "changed", transactionTimeoutSeconds="3")
    recut = play(cluster, "fewer", tasks=3, transactionTimeoutSeconds="3")
    slow = play(cluster, "slow", transactionTimeoutSeconds="3")
    for each in (late, changed, recut):
        _killed_after_decision(each, life)
        each.start()
    waiting = [slow.task(0, number) for number in range(2)]
    deadline = time.monotonic() + 30
    while any(left_open(cluster, each) for each in (late, changed, recut, slow)):
        assert time.monotonic() < deadline
        time.sleep(0.2)

    with pytest.raises(SinkError, match=r"batch 0 of query slow: .* was aborted before the batch was whole"):
        slow.commit(waiting)
    slow.start()
    slow.batch()

    usual, changed.rows = changed.rows, rows("other")
    with pytest.raises(SinkError, match=r"decided, task 0 lost its 20 records .* lostTransactions=accept"):
        changed.batch()
    changed.rows = usual

    recut.tasks = 2
    with pytest.raises(SinkError, match=r"1 of its 3 transactions .* lostTransactions=accept \(tasks 2\)"):
        recut.batch()
    # What can be written again is, also where a part cannot.
    fewer = once(recut, 1)
    assert read(cluster, "late", "changed", "fewer", "slow") == once(slow, 1) + fewer
    accepting = play(cluster, "fewer", tasks=2, lostTransactions="accept")
    accepting.batch()
    accepting.batch()
    assert read(cluster, "fewer") == once(accepting, 2)

    for step in (1, 3, 5, 7, 9):  # of the tasks' and the driver's requests that change something
        life.begin()
        seen = [0]

        def count(api: Api, request: Any, step: int = step, seen: list[int] = seen) -> None:
            seen[0] += api in CHANGES
            if seen[0] == step:
                life.die_at = len(life.sent)

        life.on_request = count
        with pytest.raises(Killed):
            late.batch()
        late.start()
    life.on_request = lambda api, request: None
    life.begin()
    late.batch()
    late.batch()
    changed.batch()
    assert read(cluster, "late", "changed", "slow") == once(late, 2) + once(changed, 1) + once(slow, 1)


def test_a_node_killed_while_tasks_write(
    cluster: TemporaryCluster, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "BATCH_BYTES", 4000)  # some ten batches for each partition
    played = Play(cluster.bootstrap, TOPIC, "node", rows("node", 2000))
    played.batch()
    killed: list[int] = []

    def kills(api: Api, request: Any) -> None:
        if api == PRODUCE and not killed:
            killed.append(1)
            cluster.kill(1)

    life.on_request = kills
    played.batch()
    life.on_request = lambda api, request: None
    cluster.start(1)
    assert killed
    assert read(cluster, "node") == once(played, 2)


def test_what_a_query_has_written_is_not_written_by_an_old_checkpoint(cluster: TemporaryCluster) -> None:
    played = play(cluster, "old")
    for _ in range(3):
        played.batch()
    played.start()
    played.done = 1
    with pytest.raises(SinkError, match="batch 1 of query old was written long ago, the newest is 2: two"):
        played.batch()
    played.done = 5
    with pytest.raises(
        SinkError, match=r"the newest batch that the cluster knows is 2; .* missingProgress=write"
    ):
        played.batch()
    unknown = play(cluster, "unknown")
    unknown.done = 7
    with pytest.raises(
        SinkError, match="the cluster knows nothing of the batches before it; this is another"
    ):
        unknown.batch()
    anyhow = play(cluster, "unknown", missingProgress="write")
    anyhow.done = 7
    anyhow.batch()
    played.done = 3
    played.batch()
    wanted = once(played, 4) + Counter(value for task in range(2) for value in anyhow.rows(7, task))
    assert read(cluster, "old", "unknown") == wanted


def test_of_two_queries_with_one_name_the_second_is_refused_before_it_writes(
    cluster: TemporaryCluster, life: Life
) -> None:
    """Each has its own batch 0: taken for the other's, its rows would be passed over without a word."""
    one, other = play(cluster, "shared"), play(cluster, "shared")
    other.spark_id, other.rows = "another", rows("other")
    one.batch()
    other.done = 0
    life.begin()
    with pytest.raises(SinkError, match=r"batch 0 of query shared is another query's .* option 'query'"):
        other.batch()
    assert not {*life.sent} & {*CHANGES}, "the first one is not disturbed"
    other.done = 1
    with pytest.raises(SinkError, match="batch 1 of query shared is another query's"):
        other.batch()
    one.batch()
    one.start()
    one.done = 1  # its driver died before Spark had noted the batch
    one.batch()
    # A program that numbers writes by itself has other batches under this name's numbers, too.
    program = play(cluster, "shared")
    program.spark_id, program.done = "", one.done
    with pytest.raises(SinkError, match="is another query's"):
        program.batch()
    # What a release left that did not know Spark's ids may be this query's.
    old = play(cluster, "earlier")
    old.spark_id = ""
    old.batch()
    old.start()
    old.spark_id = "id"
    old.batch()
    assert read(cluster, "shared", "other", "earlier") == once(one, 2) + once(old, 2)


def test_a_decision_on_hundreds_of_tasks(cluster: TemporaryCluster) -> None:
    played = play(cluster, "many")
    with Brokers(played.options.bootstrap, 40) as brokers:
        ledger = Ledger(brokers, "many", TOPIC)
        claimed = ledger.claim("run", 0, 0, lambda found: None, lambda found: found)
        tasks = tuple(
            Prepared(number, 0, 1 << 40 | number, 7, 1000, hash((number, "x")) & (1 << 63) - 1)
            for number in range(700)
        )
        assert ledger.decide(claimed, 0, tasks) == ledger.read_stable()
        few = ledger.decide(claimed, 1, tasks[:1])
        assert (few, few.tasks, few.next_batch) == (ledger.read_stable(), tasks[:1], 2)


def test_parts_of_two_decisions_are_read_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups over which a decision is cut have coordinators of their own, and one may be ahead."""
    tasks = tuple(
        Prepared(one, 0, 1 << 40 | one, 7, 9, hash((one, "x")) & (1 << 63) - 1) for one in range(400)
    )
    older = Progress(3, "run", 1, 0, tasks, TOPIC)
    newer = replace(older, next_batch=4)

    def parts(of: Progress) -> list[Any]:
        cut = [text.split(":", 2) for text in progress._encoded(of)]
        return [
            progress._Part(TOPIC, of.next_batch, int(count), checksum, text) for count, checksum, text in cut
        ]

    assert len(parts(older)) > 1
    answers = iter([parts(newer)[0], *parts(older)[1:], *parts(newer)])
    monkeypatch.setattr(Ledger, "_part", lambda ledger, number: next(answers))
    assert Ledger(Brokers([], 5), "torn", TOPIC).read_stable() == newer


def test_brokers_that_do_not_answer() -> None:
    played = Play("127.0.0.1:1", TOPIC, "nowhere", rows("nowhere"), patienceSeconds="1")
    with pytest.raises(SinkError, match=r"group .* no success for 1 s, at last: no broker of 127.0.0.1:1"):
        played.batch()


def test_a_topic_that_is_not_there(cluster: TemporaryCluster) -> None:
    played = Play(cluster.bootstrap, "nosuch", "nosuch", rows("nosuch"), progressTopic=TOPIC)
    with pytest.raises(SinkError, match="there is no topic 'nosuch': create it, or mend the name"):
        played.batch()


def test_an_abort_knows_the_decision(cluster: TemporaryCluster, life: Life) -> None:
    """Spark calls abort in another process than the commit that failed."""
    played = play(cluster, "aborts")
    done = [played.task(0, number) for number in range(2)]
    _decided_only(played, life, done)
    DriverSink(played.options).abort([*done])
    played.start()
    played.batch()
    assert read(cluster, "aborts") == once(played, 1)


def _decided_only(played: Play, life: Life, done: list[Any]) -> None:
    life.begin()

    def dies(api: Api, request: Any) -> None:
        if api == END_TXN and life.die_at is None:
            life.die_at, life.unread = len(life.sent), True

    life.on_request = dies
    with pytest.raises(Killed):
        DriverSink(played.options).commit(done)
    life.on_request = lambda api, request: None
    life.begin()
