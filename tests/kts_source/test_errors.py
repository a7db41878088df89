from __future__ import annotations

import inspect
import pickle

import pytest

from kts_source import errors
from kts_source.errors import TieredKafkaError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, TieredKafkaError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_tells_its_place_and_travels(kind: type[TieredKafkaError]) -> None:
    error = kind("what", topic="t", partition=3, offset=0, uri="s3://b/k", position=7)
    assert str(error) == "what [topic t, partition 3, offset 0, object s3://b/k, byte 7]"
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert (twin.topic, twin.partition, twin.offset, twin.uri, twin.position) == (
        "t",
        3,
        0,
        "s3://b/k",
        7,
    )
    assert str(kind("what")) == "what"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidOptionError, ValueError),
        (errors.ObjectNotFoundError, FileNotFoundError),
        (errors.TierNotFoundError, FileNotFoundError),
        (errors.StoreNotFoundError, errors.TierNotFoundError),
        (errors.AccessDeniedError, PermissionError),
    ],
)
def test_errors_are_what_a_caller_would_catch(
    kind: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(kind, builtin)


def test_only_what_may_pass_is_retriable() -> None:
    retriable = [
        errors.BrokerUnavailableError,
        errors.LeaderChangedError,
        errors.RegistryUnavailableError,
        errors.StoreUnavailableError,
    ]
    assert [kind for kind in KINDS if kind.retriable] == retriable


def test_facts_are_filled_in_and_never_replaced() -> None:
    error = TieredKafkaError("what", uri="inner")
    assert error.located(topic="t", uri="outer", offset=0) is error
    assert error.located(offset=5).offset == 0
    assert (error.topic, error.uri) == ("t", "inner")


def test_attempts_are_told_and_travel() -> None:
    error = errors.StoreError("what", uri="u", attempts=("one", "two"))
    assert str(error) == "what [object u]\n  one\n  two"
    assert pickle.loads(pickle.dumps(error)).attempts == ("one", "two")
