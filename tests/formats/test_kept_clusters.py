"""Clusters that earlier builds made start with this one, and all that was acknowledged is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.command import as_json, strandline
from tests.cluster.real_cluster import RealCluster, running_cluster, wait
from tests.formats import contents
from tests.formats.unpacking import KEPT, unpack

MOVES = [f"commit-{part}-{number}".encode() for part in (0, 1) for number in range(3)]
OPEN = [f"open-1-{number}".encode() for number in range(3)]


@pytest.fixture(scope="module", params=sorted(KEPT.glob("*.tar.xz")), ids=lambda path: path.name)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    folder = unpack(request.param, tmp_path_factory.mktemp("kept"))
    with running_cluster(folder) as running:
        yield running


def test_all_records_are_there_in_their_order(cluster: RealCluster) -> None:
    written = [record for part in (0, 1) for record in (*contents.small(part), *contents.large(part))]
    assert contents.read(cluster.bootstrap, contents.PLAIN) == written
    assert contents.read(cluster.bootstrap, contents.BULK) == contents.bulk()


def test_a_table_has_the_latest_values(cluster: RealCluster) -> None:
    rows: dict[bytes | None, bytes | None] = {}
    for key, value in contents.read(cluster.bootstrap, contents.TABLE):
        rows[key] = value
    assert {key: value for key, value in rows.items() if value is not None} == contents.table()


def test_transactions_that_ended_stay_so_and_an_open_one_is_aborted_in_its_time(cluster: RealCluster) -> None:
    """It timed out long ago, while the cluster was kept."""
    everything = contents.read(cluster.bootstrap, contents.MOVES, committed_only=False)
    assert [value for _, value in everything if value in OPEN] == OPEN
    assert [value for _, value in contents.read(cluster.bootstrap, contents.MOVES)] == MOVES
    contents.transact(cluster.bootstrap, 0)

    def committed() -> list[bytes | None]:
        return [value for _, value in contents.read(cluster.bootstrap, contents.MOVES)]

    wait(lambda: committed() == [*MOVES, *MOVES[:3]])


def test_offsets_users_and_quotas_are_there(
    cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert contents.committed(cluster.bootstrap) == contents.COMMITTED
    where = ("--cluster", str(cluster.folder))
    assert contents.USER in strandline(capfd, monkeypatch, "user", "list", *where).out
    assert str(contents.QUOTA) in strandline(capfd, monkeypatch, "quota", "list", *where).out


def test_its_feature_level_rises_at_the_operators_word(
    cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--cluster", str(cluster.folder))
    raised = strandline(capfd, monkeypatch, "cluster", "upgrade", *where)
    assert raised.status == 0, raised.err
    as_json(strandline(capfd, monkeypatch, "checkpoint", "--json", *where))
    assert contents.committed(cluster.bootstrap) == contents.COMMITTED
