"""Error codes of Kafka's protocol that a reader meets. Source: `Errors` in Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.errors import BrokerAccessError, BrokerError

if TYPE_CHECKING:
    from typing import Unpack

    from kts_source.errors import Place

UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REPLICA_NOT_AVAILABLE: Final = 9
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103

NEW_LEADER: Final = frozenset(
    {LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH}
)
"""Somebody else leads the partition, or soon will."""

PASSING: Final = NEW_LEADER | {
    UNKNOWN_TOPIC_OR_PARTITION,  # a broker that has not heard of the topic yet
    7,  # REQUEST_TIMED_OUT
    8,  # BROKER_NOT_AVAILABLE
    REPLICA_NOT_AVAILABLE,  # also: what the tier holds is not loaded yet
    13,  # NETWORK_EXCEPTION
    14,  # COORDINATOR_LOAD_IN_PROGRESS
    56,  # KAFKA_STORAGE_ERROR
    OFFSET_NOT_AVAILABLE,
    89,  # THROTTLING_QUOTA_EXCEEDED
    UNKNOWN_SERVER_ERROR,
}
"""The same request stands a chance later."""

DENIED: Final = frozenset({TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED})

TOPIC_GONE: Final = frozenset({UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID})

_NAMES: Final = {
    OFFSET_OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
    LEADER_NOT_AVAILABLE: "LEADER_NOT_AVAILABLE",
    NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_OR_FOLLOWER",
    REPLICA_NOT_AVAILABLE: "REPLICA_NOT_AVAILABLE",
    TOPIC_AUTHORIZATION_FAILED: "TOPIC_AUTHORIZATION_FAILED",
    CLUSTER_AUTHORIZATION_FAILED: "CLUSTER_AUTHORIZATION_FAILED",
    UNSUPPORTED_VERSION: "UNSUPPORTED_VERSION",
    56: "KAFKA_STORAGE_ERROR",
    FENCED_LEADER_EPOCH: "FENCED_LEADER_EPOCH",
    UNKNOWN_LEADER_EPOCH: "UNKNOWN_LEADER_EPOCH",
    OFFSET_NOT_AVAILABLE: "OFFSET_NOT_AVAILABLE",
    UNKNOWN_TOPIC_ID: "UNKNOWN_TOPIC_ID",
    UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR",
}


def error_name(code: int) -> str:
    """Kafka's name of an error code, and its number."""
    return f"{_NAMES[code]} ({code})" if code in _NAMES else f"error {code}"


def refusal(code: int, **place: Unpack[Place]) -> BrokerError:
    """The error for a code that does not pass."""
    if code in DENIED:
        return BrokerAccessError(
            "not allowed to read the topic: the user needs Describe and Read on it", **place
        )
    return BrokerError(f"a broker refuses: {error_name(code)}", **place)
