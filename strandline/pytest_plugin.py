"""The fixture `strandline_cluster`, which pytest finds by itself where Strandline is installed.

Nothing but pytest is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import strandline


@pytest.fixture(scope="session")
def strandline_cluster() -> Iterator[strandline.TemporaryCluster]:
    """A Strandline cluster of one node for the whole run of tests; `.bootstrap` is for any Kafka client."""
    with strandline.local_cluster() as cluster:
        yield cluster
