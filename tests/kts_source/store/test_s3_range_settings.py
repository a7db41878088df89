"""Tests the settings for range reads of S3, and options that only s3fs supports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.store.range_reader import FsspecOnlyError
from kts_source.store.s3_ranges import s3_settings
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import s3_arguments, storage_options_from
from tests.kts_source.store.one_object import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable


AWS = "https://s3.eu-west-3.amazonaws.com"
VIRTUAL = "https://bucket.s3.us-gov-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("options", "url", "path"),
    [
        ({"s3.region": "eu-west-3"}, AWS, "/bucket"),
        ({"s3.region": "us-gov-west-1", "s3.force-virtual-addressing": "true"}, VIRTUAL, ""),
        ({"s3.endpoint": "http://minio:9000/"}, "http://minio:9000", "/bucket"),
        ({"s3.endpoint": "https://minio/at/s3"}, "https://minio", "/at/s3/bucket"),
    ],
)
def test_settings_contain_endpoint_and_region(
    clean_environment: None, options: dict[str, str], url: str, path: str
) -> None:
    storage = storage_options_from({**KEYS, **options}).reveal()
    settings = s3_settings("bucket", s3_arguments(storage))
    assert (settings.http.url, settings.path) == (url, path)
    assert settings.region == options.get("s3.region", "us-east-1")
    assert settings.keys.reveal() == ("AKGIVEN", "secret-0123456789", None)
    assert not settings.requester_pays
    assert settings.http.proxy.reveal() is None
    assert (settings.http.connect_seconds, settings.http.read_seconds) == (10.0, 5.0)
    assert "secret" not in repr(settings)


def test_settings_contain_proxy_timeouts_and_certificates(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/own.pem")
    proxy = "http://user:pass-word@proxy:3128"
    options = {
        "s3.region": "eu-west-3",
        "s3.proxy-uri": proxy,
        "s3.connect-timeout": "3",
        "s3.request-timeout": "9",
        "storageOptions": '{"requester_pays": true}',
    }
    storage = storage_options_from({**KEYS, **options}).reveal()
    settings = s3_settings("bucket", s3_arguments(storage))
    assert settings.requester_pays
    assert settings.http.proxy.reveal() == proxy
    assert settings.http.ca_file == "/etc/own.pem"
    assert (settings.http.connect_seconds, settings.http.read_seconds) == (3.0, 9.0)
    assert "pass-word" not in repr(settings)


def _proxy_of(endpoint: str) -> str | None:
    options = {**KEYS, "s3.region": "eu-west-3", "s3.endpoint": endpoint}
    settings = s3_settings("bucket", s3_arguments(storage_options_from(options).reveal()))
    return settings.http.proxy.reveal()


def test_proxy_of_environment_is_used_unless_no_proxy_lists_the_host(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert _proxy_of("https://minio") == "http://proxy:3128"
    assert _proxy_of("https://minio.inside.example:9000") is None
    assert _proxy_of("http://minio") is None


def test_anonymous_settings_ignore_keys(clean_environment: None) -> None:
    extra = {"anon": True, "key": "AK", "secret": "secret-0123456789", "token": "token"}
    options = {"s3.endpoint": "http://minio", "storageOptions": json.dumps(extra)}
    settings = s3_settings("bucket", s3_arguments(options))
    assert settings.keys.reveal() is None


def _profile(text: str) -> Callable[[pytest.MonkeyPatch], None]:
    def write(_monkeypatch: pytest.MonkeyPatch) -> None:
        Path(os.environ["AWS_CONFIG_FILE"]).write_text(f"[default]\n{text}\n")

    return write


def _environment(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setenv(name, text)


LEFT: dict[str, tuple[dict[str, str], Callable[[pytest.MonkeyPatch], None] | None]] = {
    "the region": ({}, None),
    "has special endpoints": ({"s3.region": "cn-north-1"}, None),
    "virtual addressing": (
        {"s3.endpoint": "http://minio", "s3.force-virtual-addressing": "true"},
        None,
    ),
    "name verify": (
        {"s3.region": "eu-west-3", "storageOptions": '{"client_kwargs": {"verify": false}}'},
        None,
    ),
    "name default_block_size": (
        {"s3.region": "eu-west-3", "storageOptions": '{"default_block_size": 1}'},
        None,
    ),
    "name signature_version": (
        {
            "s3.region": "eu-west-3",
            "storageOptions": '{"config_kwargs": {"signature_version": "s3"}}',
        },
        None,
    ),
    "KTS_TUNING": ({"s3.region": "eu-west-3"}, _environment("KTS_TUNING", "off")),
    "AWS_ENDPOINT_URL": ({}, _environment("AWS_ENDPOINT_URL", "http://minio")),
    "a proxy": ({"s3.region": "eu-west-3"}, _environment("ALL_PROXY", "http://proxy")),
    "has endpoint_url": ({}, _profile("endpoint_url = http://minio")),
    "has s3": ({}, _profile("s3 =\n  addressing_style = virtual")),
    "has use_fips_endpoint": ({}, _profile("use_fips_endpoint = true")),
    "does not have the form": ({"s3.endpoint": "minio:9000"}, None),
    "the endpoint does not": ({"s3.endpoint": "http://minio/?x=1"}, None),
    "not have the form https": ({"s3.endpoint": "http://minio/a%20b"}, None),
    "the form https://host": ({"s3.endpoint": "http://minio/a b"}, None),
    "region is unusual": ({"s3.endpoint": "http://minio", "s3.region": "aws-global"}, None),
    "the region is unusual": (
        {"s3.endpoint": "http://x", "storageOptions": '{"client_kwargs": {"region_name": ""}}'},
        None,
    ),
    "addressing style": (
        {
            "s3.endpoint": "http://x",
            "storageOptions": '{"config_kwargs": {"s3": {"addressing_style": "junk"}}}',
        },
        None,
    ),
    "read_timeout": (
        {"s3.endpoint": "http://x", "storageOptions": '{"config_kwargs": {"read_timeout": null}}'},
        None,
    ),
    "connect_timeout": (
        {"s3.endpoint": "http://x", "storageOptions": '{"config_kwargs": {"connect_timeout": ""}}'},
        None,
    ),
    "profile cannot be read": ({"s3.profile-name": "nobody"}, None),
}


@pytest.mark.parametrize("reason", LEFT)
def test_s3fs_reads_if_own_client_does_not_support_the_options(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    options, prepare = LEFT[reason]
    if prepare is not None:
        prepare(monkeypatch)
    keys = {} if "s3.profile-name" in options else KEYS
    storage = storage_options_from({**keys, **options})
    with pytest.raises(FsspecOnlyError, match=reason):
        s3_settings("bucket", s3_arguments(storage.reveal()))
    store = S3Store("s3://bucket", storage)
    assert store._ranges.reason
    assert not store._ranges.can_read("x")


@pytest.mark.parametrize(
    "name", ["arn:aws:s3:::x", "Upper", "x--x-s3", "x--op-s3", "x-s3alias", "a"]
)
def test_s3fs_reads_buckets_with_special_names(clean_environment: None, name: str) -> None:
    arguments = s3_arguments({**KEYS, "s3.region": "eu-west-3"})
    with pytest.raises(FsspecOnlyError, match="unusual"):
        s3_settings(name, arguments)


def test_obstore_client_options_raise_fsspec_only_error() -> None:
    """If options of obstore had an effect, a scan that falls back to s3fs would use different
    settings.
    """
    options = storage_options_from({**KEYS, "storageOptions": json.dumps({"client_options": {}})})
    with pytest.raises(FsspecOnlyError, match="client_options"):
        s3_settings("bucket", s3_arguments(options.reveal()))
