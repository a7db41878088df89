from __future__ import annotations

import json

import pytest

from kts_source.errors import InvalidOptionError
from kts_source.store.storage_options import (
    S3_OPTIONS,
    extra_arguments,
    s3_arguments,
    secret_values,
    storage_options_from,
)

KEYS = {"s3.access-key-id": "the-key", "s3.secret-access-key": "the-secret"}


def test_storage_option_names_ignore_case() -> None:
    options = {"path": "s3://b", "S3.Region": "r", "storageoptions": "{}", "subscribe": "t"}
    assert storage_options_from(options).reveal() == {"s3.region": "r", "storageOptions": "{}"}


def test_every_documented_option_name_is_accepted() -> None:
    values = {"s3.connect-timeout": "1", "s3.request-timeout": "2.5", "s3.anonymous": "false"}
    bools = {"s3.path-style-access": "True", "s3.force-virtual-addressing": "FALSE"}
    options = {name: values.get(name, bools.get(name, "text")) for name, _ in S3_OPTIONS}
    assert dict(storage_options_from(options).reveal()) == options
    assert all(meaning for _, meaning in S3_OPTIONS)


def test_options_become_arguments_of_s3fs() -> None:
    arguments = s3_arguments(
        {
            **KEYS,
            "s3.session-token": "t",
            "s3.endpoint": "http://e",
            "s3.region": "r",
            "s3.path-style-access": "true",
            "s3.connect-timeout": "0.5",
            "s3.request-timeout": "7",
            "s3.proxy-uri": "http://p",
            "s3.profile-name": "me",
        }
    )
    config = arguments.pop("config_kwargs")
    assert arguments == {
        "anon": False,
        "key": "the-key",
        "secret": "the-secret",
        "token": "t",
        "endpoint_url": "http://e",
        "profile": "me",
        "client_kwargs": {"region_name": "r"},
        "use_listings_cache": False,
    }
    assert config == {
        "connect_timeout": 0.5,
        "read_timeout": 7.0,
        "max_pool_connections": 96,
        "response_checksum_validation": "when_required",
        "request_checksum_calculation": "when_required",
        "s3": {"addressing_style": "path"},
        "proxies": {"http": "http://p", "https": "http://p"},
        "retries": {"total_max_attempts": 1},
    }


@pytest.mark.parametrize(
    ("options", "style"),
    [
        ({}, None),
        ({"s3.path-style-access": "true"}, "path"),
        ({"s3.path-style-access": "false"}, "virtual"),
        ({"s3.force-virtual-addressing": "true"}, "virtual"),
        ({"s3.force-virtual-addressing": "false"}, "path"),
        ({"s3.path-style-access": "false", "s3.force-virtual-addressing": "true"}, "virtual"),
    ],
)
def test_addressing_style_follows_the_options(options: dict[str, str], style: str | None) -> None:
    config = s3_arguments(options)["config_kwargs"]
    assert config.get("s3", {}).get("addressing_style") == style


def test_storage_options_override_all_arguments_except_retries() -> None:
    extra = {
        "key": "other",
        "requester_pays": True,
        "config_kwargs": {"read_timeout": 99, "retries": {"max_attempts": 10}, "user_agent": "x"},
    }
    arguments = s3_arguments({**KEYS, "storageOptions": json.dumps(extra)})
    assert (arguments["key"], arguments["secret"]) == ("other", "the-secret")
    assert arguments["requester_pays"] is True
    config = arguments["config_kwargs"]
    assert config["read_timeout"] == 99
    assert (config["connect_timeout"], config["user_agent"]) == (10, "x")
    assert config["retries"] == {"total_max_attempts": 1}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"s3.acces-key-id": "x"}, "did you mean s3.access-key-id"),
        ({"S3.Endpoint.Url": "x"}, "did you mean s3.endpoint"),
        ({"s3.zzz": "x"}, "known are s3.endpoint"),
        ({"s3.access-key-id": "only"}, "go together"),
        ({"s3.secret-access-key": "only"}, "go together"),
        ({"s3.session-token": "only"}, "s3.session-token needs"),
        ({**KEYS, "s3.anonymous": "true"}, "contradicts s3.access-key-id"),
        ({"s3.anonymous": "yes"}, "s3.anonymous must be true or false"),
        (
            {"s3.path-style-access": "true", "s3.force-virtual-addressing": "true"},
            "contradicts",
        ),
        ({"s3.connect-timeout": "0"}, "positive number of seconds"),
        ({"s3.connect-timeout": "nan"}, "positive number of seconds"),
        ({"s3.request-timeout": "inf"}, "positive number of seconds"),
        ({"s3.request-timeout": "5s"}, "positive number of seconds"),
        ({"storageOptions": "{"}, "JSON object"),
        ({"storageOptions": "[1]"}, "a list"),
        ({"storageOptions": '"text"'}, "a str"),
    ],
)
def test_invalid_options_are_reported(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text.replace(".", r"\.")):
        storage_options_from(options)


def test_option_errors_mask_values() -> None:
    for options in (
        {"storageOptions": '{"secret": "hush-hush", }'},
        {"s3.anonymous": "hush-hush"},
        {"s3.request-timeout": "hush-hush"},
        {"s3.access-key-id": "hush-hush"},
        {"s3.acess-key": "hush-hush"},
    ):
        with pytest.raises(InvalidOptionError) as caught:
            storage_options_from(options)
        assert "hush" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_credentials_are_secret_values() -> None:
    extra = {"token": "t1", "nested": {"sas": ["s1"]}, "endpoint_url": "http://e", "number": 5}
    options = {**KEYS, "s3.region": "r", "storageOptions": json.dumps(extra)}
    assert secret_values(options) == {"the-key", "the-secret", "t1", "s1"}


def test_keys_in_connection_string_are_secret_values() -> None:
    parts = "AccountName=shop;AccountKey=a2V5=="
    signed = "BlobEndpoint=http://e;SharedAccessSignature=sv=1&sig=x"
    for text, secret in ((parts, "a2V5=="), (signed, "sv=1&sig=x")):
        options = {"storageOptions": json.dumps({"connection_string": text})}
        assert secret_values(options) == {text, secret}


def test_empty_storage_options_add_no_arguments() -> None:
    assert extra_arguments({}) == extra_arguments({"storageOptions": " "}) == {}
