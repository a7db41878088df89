"""Tests keys of the AWS chain that are replaced while a store uses them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import AccessDeniedError
from tests.kts_source.store.fake_cloud import DATA, ETAG
from tests.kts_source.store.one_object import BY_S3FS, KEYS, OneObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def bucket(clean_environment: None) -> Iterator[OneObject]:
    with OneObject().serving() as server:
        yield server


def _from_a_file(key: str) -> None:
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret-of-{key}\n"
    Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).write_text(text)


def _from_a_process(key: str) -> None:
    document = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": f"secret-of-{key}"}
    answer = Path(os.environ["AWS_CONFIG_FILE"]).with_name("answer.json")
    answer.write_text(json.dumps(document))
    command = f"[default]\ncredential_process = cat {answer}\n"
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(command)


@pytest.mark.parametrize("write", [_from_a_file, _from_a_process])
@pytest.mark.parametrize("options", [{}, BY_S3FS], ids=["own", "s3fs"])
@pytest.mark.parametrize("refusal", [(400, "ExpiredToken"), (403, "InvalidAccessKeyId")])
def test_refused_keys_are_replaced_by_newer_keys(
    bucket: OneObject,
    write: Callable[[str], None],
    options: dict[str, str],
    refusal: tuple[int, str],
) -> None:
    """The AWS chain does not know when these keys expire."""
    write("AKOLD")
    bucket.refusal = refusal
    store = bucket.store(**options, **{"s3.connect-timeout": "10"})
    assert bool(store._ranges.reason) == bool(options)
    assert store.get_range("x", 0, 4, version=ETAG) == DATA[:4]
    bucket.refuses = lambda headers: "AKOLD" in headers["authorization"]
    write("AKNEW")
    before = store.counters
    with ThreadPoolExecutor(4) as pool:
        contents = list(pool.map(lambda start: store.get_range("x", start, start + 4), range(32)))
    assert contents == [DATA[start : start + 4] for start in range(32)]
    assert (store.counters - before).retries == 0
    assert bool(store._ranges.reason) == bool(options)
    store.close()
    other, requests = bucket.store(**options, **{"s3.connect-timeout": "10"}), len(bucket.seen)
    assert other.get_range("x", 0, 4, version=ETAG) == DATA[:4]
    assert len(bucket.seen) == requests + 1, "no other store uses the refused keys"
    other.close()


@pytest.mark.parametrize("options", [{}, BY_S3FS], ids=["own", "s3fs"])
def test_refused_keys_raise_access_denied_error_if_there_are_no_newer_keys(
    bucket: OneObject, options: dict[str, str]
) -> None:
    _from_a_file("AKOLD")
    bucket.refusal, bucket.refuses = (400, "ExpiredToken"), lambda _headers: True
    for number, new_keys in enumerate((KEYS, {})):
        store = bucket.store(**options, **new_keys)
        bucket.seen.clear()
        with pytest.raises(AccessDeniedError, match="ExpiredToken"):
            store.get_range("x", 0, 4)
        # s3fs cannot know if the chain has newer keys, so it sends the request again.
        assert len(bucket.seen) == store.counters.requests == (2 if number and options else 1)
        store.close()


def test_object_look_ups_use_newer_keys(bucket: OneObject) -> None:
    _from_a_file("AKOLD")
    bucket.refusal = 400, ""
    store = bucket.store()
    assert store.head("x").size == len(DATA)
    bucket.refuses = lambda headers: "AKOLD" in headers["authorization"]
    _from_a_file("AKNEW")
    assert store.head("x").size == len(DATA)
    assert store.counters.requests == 3  # botocore looks up the region
    store.close()
