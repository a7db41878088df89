"""Checks that different transforms have different fingerprints. All processes must compute the same
fingerprint for the same transform.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import FingerprintError
from kts_source.export.fingerprint import check_fingerprint, describe_transform, digest_number
from tests.kts_source.export.bound_transforms import KINDS, VALUES, Stamp, closure, stamped
from tests.kts_source.export.exporting import FORMATS, Lake, source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def assert_different_digests(
    make: Callable[[Any], Any], values: Iterable[Callable[[], Any]]
) -> None:
    texts = [describe_transform(make(value())) for value in values]
    assert len(set(texts)) == len(texts)
    assert texts == [describe_transform(make(value())) for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_digest_contains_the_value_that_each_kind_of_transform_binds(kind: str) -> None:
    assert_different_digests(KINDS[kind], [lambda: 1, lambda: 2])


def test_transforms_with_different_bound_values_have_different_digests() -> None:
    assert_different_digests(closure, list(VALUES.values()))


PAIR = (lambda batch: batch.slice(1), lambda batch: batch.slice(2))


def test_two_lambdas_in_one_line_have_different_digests() -> None:
    assert len({describe_transform(function) for function in PAIR}) == 2


def test_digest_of_code_without_source_is_stable() -> None:
    def function_of(text: str) -> Any:  # noqa: ANN401
        names: dict[str, Any] = {"__name__": "nowhere"}
        exec(text, names)
        return names["f"]

    texts = [
        "f = lambda b: b",
        "f = lambda b: b.slice(1)",
        "f = lambda b: b.slice(2)",
        "f = lambda b: b.filter(2)",
        "f = lambda b: (lambda: b.slice(2))()",
        "f = lambda b: (lambda: b.slice(3))()",
    ]
    assert len({describe_transform(function_of(text)) for text in texts}) == len(texts)
    assert describe_transform(function_of(texts[1])) == describe_transform(function_of(texts[1]))


def test_fingerprint_attribute_of_an_object_replaces_its_digest() -> None:
    class Named:
        fingerprint = "v1"
        lock = threading.Lock()

    class Holder(Stamp):
        pass

    assert describe_transform(Named()) == "v1"  # type: ignore[arg-type]
    assert describe_transform(Holder(Named())) == describe_transform(Holder(Named()))


def test_bound_objects_that_cannot_be_described_are_refused() -> None:
    with pytest.raises(FingerprintError, match=r"_thread\.lock .*`fingerprint`"):
        describe_transform(closure(threading.Lock()))
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(FingerprintError, match="nested too deeply"):
        describe_transform(closure(deep))


def test_digest_is_equal_in_all_processes() -> None:
    code = (
        "from kts_source.export.fingerprint import describe_transform\n"
        "from tests.kts_source.export.bound_transforms import KINDS, VALUES, closure\n"
        "for kind in KINDS.values(): print(describe_transform(kind({'a', 'b', 'c'})))\n"
        "for value in VALUES.values(): print(describe_transform(closure(value())))"
    )
    transforms = [make({"c", "b", "a"}) for make in KINDS.values()]
    transforms += [closure(make()) for make in VALUES.values()]
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert process.stdout.splitlines() == [
        describe_transform(transform) for transform in transforms
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_stored_fingerprint_may_be_text_or_number(kind: str) -> None:
    rule = describe_transform(KINDS[kind](1))
    for stored in (rule, str(digest_number(rule))):
        check_fingerprint({"transform": stored}, {"transform": rule})
    other = describe_transform(KINDS[kind](2))
    for stored in (other, str(digest_number(other))):
        with pytest.raises(FingerprintError, match="created with other settings"):
            check_fingerprint({"transform": stored}, {"transform": rule})


@pytest.mark.parametrize("table_format", FORMATS)
def test_export_with_another_transform_is_refused(tmp_path: Path, table_format: str) -> None:
    lake = Lake(tmp_path, table_format)
    first = '{"txn":{"0":500,"1":500,"2":500}}'
    lake.export(source(endingOffsets=first), transform=functools.partial(stamped, version=1))
    before = lake.read().num_rows
    with pytest.raises(FingerprintError, match="transform"):
        lake.export(source(), transform=functools.partial(stamped, version=2))
    assert lake.read().num_rows == before
    lake.export(source(), transform=functools.partial(stamped, version=1))
    assert lake.read().num_rows > before > 0
