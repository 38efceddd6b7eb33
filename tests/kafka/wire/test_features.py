"""What ApiVersions says of features: only levels that its reader can read, and those in force."""

from __future__ import annotations

import pytest

from strandline.node.kafka.wire.apis import (
    APIS,
    ApiKey,
    Feature,
    api_versions_response,
    unsupported_api_versions_response,
)


@pytest.mark.parametrize("version", range(APIS[ApiKey.API_VERSIONS].last + 1))
def test_features_are_told_to_those_who_can_read_them(version: int) -> None:
    answer = api_versions_response(version)
    if version < 3:
        assert not hasattr(answer, "finalized_features")
        return
    finalized = {
        one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features
    }
    assert finalized == {"transaction.version": (2, 2), "group.version": (1, 1)}
    # Clients take features for unknown while their epoch is below zero.
    assert answer.finalized_features_epoch == 0
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    # KIP-1022: version 3's readers fail on a feature that goes down to 0.
    assert supported == ({"transaction.version": (0, 2), "group.version": (0, 1)} if version > 3 else {})


def test_who_asks_in_an_unknown_version_is_told_of_none() -> None:
    assert not hasattr(unsupported_api_versions_response(), "finalized_features")


def test_an_answer_that_was_made_before_is_of_the_same_features_and_epoch() -> None:
    before, now = Feature("transaction.version", 0, 2, 1), Feature("transaction.version", 0, 2, 2)
    for level, epoch in ((before, 1), (now, 2), (now, 3), (before, 1)):
        answer = api_versions_response(4, [level], epoch)
        assert [one.max_version_level for one in answer.finalized_features] == [level.level]
        assert answer.finalized_features_epoch == epoch
