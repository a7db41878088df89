from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path

import pytest

from kts_source import errors
from kts_source.errors import TieredKafkaError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, TieredKafkaError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_shows_its_location_and_can_be_pickled(kind: type[TieredKafkaError]) -> None:
    error = kind("what", topic="t", partition=3, offset=0, uri="s3://b/k", position=7)
    assert str(error) == "what [topic t, partition 3, offset 0, object s3://b/k, byte 7]"
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is kind
    assert str(restored) == str(error)
    assert (
        restored.topic,
        restored.partition,
        restored.offset,
        restored.uri,
        restored.position,
    ) == (
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
def test_errors_have_builtin_base_classes(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_only_temporary_errors_are_retriable() -> None:
    retriable = [
        errors.BrokerUnavailableError,
        errors.CommitConflictError,
        errors.LeaderChangedError,
        errors.RegistryUnavailableError,
        errors.StoreUnavailableError,
        errors.WorkerDiedError,
    ]
    assert [kind for kind in KINDS if kind.retriable] == retriable


def test_located_sets_only_missing_parts_of_the_location() -> None:
    error = TieredKafkaError("what", uri="inner")
    located = error.located(topic="t", uri="outer", offset=0)
    assert located.located(offset=5).offset == 0
    assert (located.topic, located.uri) == ("t", "inner")
    assert (error.topic, error.offset, error.uri) == (None, None, "inner")


def test_located_error_keeps_class_attributes_cause_and_traceback() -> None:
    try:
        raise errors.StoreError("what", attempts=("one",)) from ValueError("why")
    except errors.StoreError as raised:
        error = raised
    located = error.located(offset=1)
    assert (type(located), located.attempts) == (errors.StoreError, ("one",))
    assert isinstance(located.__cause__, ValueError)
    assert located.__traceback__ is error.__traceback__


def test_every_caller_uses_the_result_of_located() -> None:
    unused = [
        f"{path.name}:{node.lineno}"
        for path in Path(errors.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("error.located")
    ]
    assert unused == []


def test_attempts_of_error_are_shown_and_pickled() -> None:
    error = errors.StoreError("what", uri="u", attempts=("one", "two"))
    assert str(error) == "what [object u]\n  one\n  two"
    assert pickle.loads(pickle.dumps(error)).attempts == ("one", "two")
