"""Finds the protocol of each member of a consumer group (KIP-1099); librdkafka's descriptions omit it.

It sends one ConsumerGroupDescribe to the group's coordinator. Every Kafka that has version 1 of the request
answers it.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from strandline.cluster.broker_connection import BrokerConnection
from strandline.snapshot.connection import Api, ConnectionLost

_DESCRIBE: Final = Api(69, 1)
"""The first version whose response has each member's type."""
_PROTOCOLS: Final = {0: "classic", 1: "consumer"}


def member_protocols(host: str, port: int, group: str) -> dict[str, str]:
    """ "classic" or "consumer" by member id; empty if the broker does not answer or does not know."""
    request = _DESCRIBE.request.ConsumerGroupDescribeRequest(
        group_ids=(group,), include_authorized_operations=False
    )
    try:
        connection = BrokerConnection(host, port)
        try:
            described = connection.ask(_DESCRIBE, request)
        finally:
            connection.close()
    except ConnectionLost:  # a broker without this version ends the connection
        return {}
    return {
        member.member_id: _PROTOCOLS[member.member_type]
        for one in described.groups
        if one.error_code is ErrorCode.none
        for member in one.members
        if member.member_type in _PROTOCOLS
    }
