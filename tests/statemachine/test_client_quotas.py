"""Client quotas: what is kept, what is refused, and each client's quota against a plain model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.statemachine.controller import quota_set
from strandline.statemachine.controller.client_quota import (
    CONNECTION_RATE,
    MAX_NAME,
    Match,
    QuotaEntity,
    QuotaFilter,
    QuotaKey,
    entity_of,
)
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    MAX_QUOTA_CHANGES,
    AlterClientQuotas,
    RaiseFeatureLevel,
    encode,
)
from strandline.statemachine.controller.feature_levels import ADDRESSES
from strandline.statemachine.controller.quota_set import Limit, QuotaSet
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption
from tests.statemachine.controller_harness import Log, registration

PRODUCED, FETCHED = QuotaKey.PRODUCED_BYTES, QuotaKey.FETCHED_BYTES
NAMES = (None, "", "a", "b")
ENTITIES = [QuotaEntity(*pair) for pair in product(NAMES, NAMES) if pair != (None, None)]


def alter(user: str | None, client_id: str | None, **values: float | None) -> AlterClientQuotas:
    return AlterClientQuotas(user, client_id, [*values.items()])


# The model: the list in Kafka's documentation, "Quotas", by its numbers.


def expected(quotas: Mapping[QuotaEntity, float], user: str, client_id: str) -> QuotaEntity | None:
    order = [
        QuotaEntity(user, client_id),
        QuotaEntity(user, ""),
        QuotaEntity(user, None),
        QuotaEntity("", client_id),
        QuotaEntity("", ""),
        QuotaEntity("", None),
        QuotaEntity(None, client_id),
        QuotaEntity(None, ""),
    ]
    found = [entity for entity in order if entity in quotas]
    return found[0] if found else None


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(ENTITIES), st.integers(1, 1000).map(float)))
def test_the_most_specific_quota_holds_in_kafkas_order(quotas: dict[QuotaEntity, float]) -> None:
    known = QuotaSet((entity, {PRODUCED: value}) for entity, value in quotas.items())
    for user, client_id in product(("a", "c"), ("a", "c")):
        entity = expected(quotas, user, client_id)
        limit = known.limit(PRODUCED, user, client_id)
        if entity is None:
            assert limit is None
            continue
        shared = QuotaEntity(
            user if entity.user is not None else None, client_id if entity.client_id is not None else None
        )
        assert limit == Limit(entity, quotas[entity], shared)
    assert known.limit(FETCHED, "a", "a") is None


@pytest.mark.parametrize(
    ("entity", "holds"),
    [((None, "a"), False), ((None, ""), False), (("u", ""), False), (("u", None), True), (("", None), True)],
)
def test_a_client_without_an_id_has_no_quota_of_client_ids(
    entity: tuple[str | None, str | None], holds: bool
) -> None:
    known = QuotaSet([(QuotaEntity(*entity), {PRODUCED: 1.0})])
    assert (known.limit(PRODUCED, "u", "") is not None) == holds


def test_each_key_is_looked_up_by_itself() -> None:
    known = QuotaSet([(QuotaEntity("a", "x"), {PRODUCED: 1.0}), (QuotaEntity("", None), {FETCHED: 2.0})])
    fetched, produced = known.limit(FETCHED, "a", "x"), known.limit(PRODUCED, "a", "x")
    assert fetched is not None
    assert produced is not None
    assert (fetched.value, produced.value) == (2.0, 1.0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(ENTITIES),
            st.dictionaries(st.sampled_from(sorted(QuotaKey)), st.none() | st.integers(1, 9).map(float)),
        ),
        max_size=12,
    )
)
def test_changes_are_those_of_a_plain_dict_and_survive_a_snapshot(
    commands: list[tuple[QuotaEntity, dict[str, float | None]]],
) -> None:
    log, model = Log(), dict[QuotaEntity, dict[str, float]]()
    for entity, changes in commands:
        values = {**model.get(entity, {}), **changes}
        model[entity] = {key: value for key, value in values.items() if value is not None}
        command = AlterClientQuotas(entity.user, entity.client_id, [*changes.items()])
        assert log.do(command) == len(model[entity])
    kept = {entity: values for entity, values in model.items() if values}
    again = Controller(lambda *_: None)
    again.restore(log.machine.snapshot())
    assert dict(again.client_quotas) == dict(log.machine.client_quotas) == kept
    assert again.snapshot() == log.machine.snapshot()
    for key, entity in product(QuotaKey, kept):
        limits = [
            machine.client_quotas.limit(key, entity.user or "z", entity.client_id or "z")
            for machine in (again, log.machine)
        ]
        assert limits[0] == limits[1]


def test_a_snapshot_before_them_is_read() -> None:
    log = Log(nodes=2)
    fields = msgpack.unpackb(log.machine.snapshot())
    fields["format"] = 9
    del fields["client_quotas"]
    again = Controller(lambda *_: None)
    again.restore(msgpack.packb(fields))
    assert again.snapshot() == log.machine.snapshot()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 1.0}, "Invalid configuration key rate"),
        ({"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ({PRODUCED: 0.0}, "Quota producer_byte_rate must be greater than 0"),
        ({PRODUCED: -1.0}, "Quota producer_byte_rate must be greater than 0"),
        ({"request_percentage": math.nan}, "Quota request_percentage must be greater than 0"),
        ({"request_percentage": math.inf}, "Quota request_percentage must be finite"),
        ({FETCHED: math.inf}, "Proposed value for consumer_byte_rate is too large for a LONG."),
        ({PRODUCED: 0.5}, "producer_byte_rate cannot be a fractional value."),
        ({FETCHED: 5.0, PRODUCED: 1.5}, "producer_byte_rate cannot be a fractional value."),
    ],
)
def test_faulty_quotas_are_refused_in_kafkas_words_all_or_none(
    changes: dict[str, float], message: str
) -> None:
    error, said = Log().refused(AlterClientQuotas("a", None, [*changes.items()]))
    assert error is KafkaError.INVALID_REQUEST
    assert message in said


def test_a_key_twice_and_an_entity_of_nothing_are_refused() -> None:
    log = Log()
    twice = AlterClientQuotas("a", None, [(PRODUCED, 1.0), (PRODUCED, None)])
    assert "Duplicate quota key" in log.refused(twice)[1]
    assert log.refused(alter(None, None))[1] == "Invalid empty client quota entity"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "broker-1")], "broker-1 is not a valid IP: write an address"),
        ([("ip", "")], "Empty ip not supported"),
        ([("ip", "10.0.0.1"), ("user", "a")], "an ip is named alone"),
    ],
)
def test_entities_that_there_are_not(parts: list[tuple[str, str | None]], message: str) -> None:
    refused = entity_of(parts)
    assert isinstance(refused, Refused)
    assert refused.error is KafkaError.INVALID_REQUEST
    assert message in refused.message


def test_a_default_is_a_name_of_its_own() -> None:
    assert entity_of([("client-id", None), ("user", "a")]) == QuotaEntity("a", "")


def test_their_number_and_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    long = log.refused(alter("u" * (MAX_NAME + 1), None, producer_byte_rate=1.0))
    assert f"at most {MAX_NAME} characters" in long[1]
    monkeypatch.setattr(quota_set, "MAX_ENTITIES", 2)
    for user in "ab":
        assert log.do(alter(user, None, producer_byte_rate=1.0)) == 1
    assert log.refused(alter("c", None, producer_byte_rate=1.0))[0] is KafkaError.POLICY_VIOLATION
    assert log.do(alter("a", None, producer_byte_rate=2.0)) == 1
    assert log.do(alter("a", None, producer_byte_rate=None)) == 0
    assert log.do(alter("c", None, producer_byte_rate=1.0)) == 1
    monkeypatch.setattr(quota_set, "MAX_ENTITIES", 10)
    monkeypatch.setattr(quota_set, "MAX_CHARACTERS", 4)
    assert log.do(alter("d", "e", producer_byte_rate=1.0)) == 1
    assert "more than 4 characters" in log.refused(alter("f", None, producer_byte_rate=1.0))[1]


def test_what_no_replica_could_take_never_gets_into_the_log() -> None:
    for changes in ([(PRODUCED, 1)], [("x", 1.0)] * (MAX_QUOTA_CHANGES + 1)):
        with pytest.raises(Corruption):
            encode(AlterClientQuotas("a", None, changes))


def test_the_version_tells_of_each_change() -> None:
    known = QuotaSet()
    for command in (alter("a", None, producer_byte_rate=1.0), alter("a", None, producer_byte_rate=None)):
        before = known.version
        known.alter(command)
        assert known.version > before
    assert not len(known)


# Filters, against ClientQuotasImage.matches of Kafka in plain words.

COMPONENT = st.tuples(st.sampled_from(Match), st.sampled_from(("a", "b")))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(("user", "client-id")), COMPONENT), st.booleans())
def test_a_filter_finds_what_kafkas_finds(wanted: dict[str, tuple[Match, str]], strict: bool) -> None:
    asked = QuotaFilter(strict)
    for kind, (match, name) in wanted.items():
        assert asked.add(kind, match, name if match is Match.EXACT else None) is None
    for entity in ENTITIES:
        parts = dict(entity.parts)
        found = all(
            kind in parts
            and (match is Match.SPECIFIED or parts[kind] == (name if match is Match.EXACT else ""))
            for kind, (match, name) in wanted.items()
        )
        assert asked.matches(entity) == (found and (not strict or parts.keys() == wanted.keys()))


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ([("", 0, "a")], KafkaError.INVALID_REQUEST, "Invalid empty entity type."),
        ([("user", 0, "a"), ("user", 2, None)], KafkaError.INVALID_REQUEST, "cannot appear more than once"),
        ([("group", 0, "a")], KafkaError.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 3, "a")], KafkaError.INVALID_REQUEST, "Unknown match type 3"),
        ([("user", 0, None)], KafkaError.INVALID_REQUEST, "MATCH_TYPE_EXACT, but set match string to null"),
        ([("user", 1, "a")], KafkaError.INVALID_REQUEST, "MATCH_TYPE_DEFAULT, but also specified"),
        ([("user", 2, "a")], KafkaError.INVALID_REQUEST, "MATCH_TYPE_SPECIFIED, but also specified"),
        ([("ip", 0, "::1"), ("user", 2, None)], KafkaError.INVALID_REQUEST, "should not be used with"),
    ],
)
def test_filters_that_kafka_refuses(
    components: list[tuple[str, int, str | None]], error: KafkaError, message: str
) -> None:
    asked = QuotaFilter(strict=False)
    (refused,) = [refused for one in components if (refused := asked.add(*one))]
    assert refused.error is error
    assert message in refused.message


# IP addresses (KIP-612).


def addressed(*quotas: tuple[str, float]) -> Log:
    log = Log(nodes=1)
    log.do(registration(1, levels=(1, ADDRESSES)))
    for level in range(2, ADDRESSES + 1):
        log.do(RaiseFeatureLevel(level))
    for ip, rate in quotas:
        assert log.do(AlterClientQuotas(None, None, [(CONNECTION_RATE, rate)], ip)) == 1
    return log


def test_an_address_has_its_own_rate_or_that_of_all_and_a_snapshot_keeps_it() -> None:
    log = addressed(("10.0.0.1", 5.0), ("2001:db8::1", 6.0), ("", 7.0))
    again = Controller(lambda *_: None)
    again.restore(log.machine.snapshot())
    assert again.snapshot() == log.machine.snapshot()
    for quotas in (log.machine.client_quotas, again.client_quotas):
        assert quotas.connection_rate("10.0.0.1") == (QuotaEntity(None, None, "10.0.0.1"), 5.0)
        assert quotas.connection_rate("::ffff:10.0.0.1") == (QuotaEntity(None, None, "10.0.0.1"), 5.0)
        assert quotas.connection_rate("2001:0db8:0::1") == (QuotaEntity(None, None, "2001:db8::1"), 6.0)
        assert quotas.connection_rate("10.0.0.2") == (QuotaEntity(None, None, ""), 7.0)
    assert log.do(AlterClientQuotas(None, None, [(CONNECTION_RATE, None)], "")) == 0
    assert log.machine.client_quotas.connection_rate("10.0.0.2") is None
    assert QuotaSet().connection_rate("10.0.0.2") is None


def test_an_address_is_one_entity_in_any_spelling() -> None:
    assert entity_of([("ip", "2001:0DB8::0001")]) == QuotaEntity(None, None, "2001:db8::1")
    assert entity_of([("ip", None)]) == QuotaEntity(None, None, "")
    asked = QuotaFilter(strict=True)
    assert asked.add("ip", Match.EXACT, "2001:0db8::0001") is None
    assert asked.matches(QuotaEntity(None, None, "2001:db8::1"))
    assert not asked.matches(QuotaEntity(None, None, "2001:db8::2"))


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        ((None, None, "10.0.0.1"), "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (("a", None, None), CONNECTION_RATE, 1.0, "Invalid configuration key connection_creation_rate"),
        ((None, None, "10.0.0.1"), CONNECTION_RATE, 0.0, "must be greater than 0"),
        ((None, None, "10.0.0.1"), CONNECTION_RATE, 0.5, "cannot be a fractional value"),
        ((None, None, "10.0.0.1"), CONNECTION_RATE, 2.0**31, "is too large for an INT"),
        (("a", None, "10.0.0.1"), CONNECTION_RATE, 1.0, "an ip is named alone"),
    ],
)
def test_rates_of_addresses_that_are_refused(
    entity: tuple[str | None, str | None, str | None], key: str, value: float, message: str
) -> None:
    user, client_id, ip = entity
    log = addressed()
    error, told = log.refused(AlterClientQuotas(user, client_id, [(key, value)], ip))
    assert error is KafkaError.INVALID_REQUEST
    assert message in told
    assert len(log.machine.client_quotas) == 0


def test_what_earlier_releases_read_has_no_place_for_an_address() -> None:
    command = alter("a", None, producer_byte_rate=1.0)
    assert msgpack.unpackb(encode(command))[1:] == ["a", None, [["producer_byte_rate", 1.0]]]
    log = Log(nodes=1)
    log.do(command)
    assert msgpack.unpackb(log.machine.snapshot())["client_quotas"] == [
        ["a", None, {"producer_byte_rate": 1.0}]
    ]
    error, told = log.refused(AlterClientQuotas(None, None, [(CONNECTION_RATE, 5.0)], "10.0.0.1"))
    assert error is KafkaError.UNSUPPORTED_VERSION
    assert f"needs feature level {ADDRESSES}" in told
