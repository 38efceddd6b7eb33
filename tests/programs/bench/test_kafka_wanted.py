"""What the figures beside Kafka are judged by."""

from __future__ import annotations

from tests.programs.bench.kafka_compare import WORK, rows
from tests.programs.bench.kafka_measure import FULL
from tests.programs.bench.kafka_wanted import BOUNDS, KAFKA, STRANDLINE, Run, medians, verdicts
from tests.programs.bench.measures import Result


def run(title: str, kafka: dict[str, float], strandline: dict[str, float]) -> Run:
    return {KAFKA: {title: Result(kafka)}, STRANDLINE: {title: Result(strandline)}}


def test_each_bound_is_on_a_figure_of_the_table() -> None:
    figures = {(row.section, row.figure) for row in rows(tuple(WORK), FULL)}
    assert {(bound.title, bound.figure) for bound in BOUNDS} <= figures
    assert all((bound.times is None) != (bound.value is None) for bound in BOUNDS)


def test_a_figure_is_judged_by_kafkas_of_the_same_run_and_by_the_median_of_the_runs() -> None:
    title = "transactions of 100 records"
    runs = [run(title, {"rate": kafka}, {"rate": own}) for kafka, own in ((10, 99), (5, 50), (20, 220))]
    wanted = [[title, "one in flight", "at least 10 x Kafka's", "10.00 x (9.90 x to 11.00 x)", "holds"]]
    assert verdicts(runs, full=False) == wanted
    assert verdicts(runs[:1], full=False)[0][3:] == ["9.90 x", "MISSED"]


def test_a_value_is_judged_as_it_is_and_without_kafka() -> None:
    runs: list[Run] = [{STRANDLINE: {"200 a second": Result({"p50": 0.0021, "p99": 0.01, "cpu": 0.3})}}]
    assert verdicts(runs, full=False) == [
        ["200 a second", "p50", "at most 2.00 ms", "2.10 ms", "MISSED"],
        ["", "p99", "at most 10.0 ms", "10.0 ms", "holds"],
    ]


def test_what_caches_would_hold_is_judged_at_full_scale_only() -> None:
    runs = [run("read far behind, 1 kB", {"rate": 1e8}, {"rate": 2e8})]
    assert verdicts(runs, full=False) == []
    assert verdicts(runs, full=True)[0][3:] == ["2.00 x", "holds"]


def test_several_runs_are_told_by_their_medians_with_all_that_was_wrong() -> None:
    runs = [run("idle", {"cpu": 1.0}, {"cpu": cpu}) for cpu in (3.0, 1.0, 2.0)]
    runs[1][STRANDLINE]["idle"].problems.append("amiss")
    assert medians(runs, STRANDLINE) == {"idle": Result({"cpu": 2.0}, problems=["amiss"])}
