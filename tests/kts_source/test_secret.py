from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import traceback
from typing import TYPE_CHECKING

import pytest

from kts_source.secret import Secret, scrub

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = {"key": "hush-hush"}


@dataclasses.dataclass(frozen=True)
class Holder:
    name: str
    secret: Secret[dict[str, str]]


FORMATS: dict[str, Callable[[Secret[dict[str, str]]], str]] = {
    "repr": repr,
    "str": str,
    "format": "{:>20}".format,
    "f-string": lambda secret: f"{secret} {secret!r} {secret!s:<9}",
    "percent": lambda secret: "%s %r" % (secret, secret),  # noqa: UP031  # tests percent formatting
    "json": lambda secret: json.dumps({"a": [secret]}, default=str),
    "list": lambda secret: str([secret, {"k": secret}]),
    "dataclass": lambda secret: repr(Holder("n", secret)),
    "asdict": lambda secret: str(dataclasses.asdict(Holder("n", secret))),
}


@pytest.mark.parametrize("format_name", FORMATS)
def test_secret_is_masked_in_texts(format_name: str) -> None:
    text = FORMATS[format_name](Secret(VALUE))
    assert "***" in text
    assert "hush" not in text
    assert "key" not in text


def test_json_dumps_without_default_function_refuses_secret() -> None:
    with pytest.raises(TypeError) as caught:
        json.dumps(Secret(VALUE))
    assert "hush" not in str(caught.value)


def test_secret_is_masked_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("opened with %s and %r", Secret(VALUE), Secret(VALUE))
    assert "***" in caplog.text
    assert "hush" not in caplog.text


def test_secret_is_masked_in_tracebacks() -> None:
    secret = Secret(VALUE)
    try:
        raise ValueError(secret)
    except ValueError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    text = "".join(shown.format())
    assert "secret = ***" in text
    assert "hush" not in text


def test_secret_is_pickled_with_its_value() -> None:
    secret = Secret(VALUE)
    for duplicate in (pickle.loads(pickle.dumps(secret)), copy.copy(secret), copy.deepcopy(secret)):
        assert duplicate.reveal() == VALUE
        assert duplicate == secret
        assert repr(duplicate) == "***"


def test_secrets_are_compared_by_value_and_have_no_hash() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    with pytest.raises(TypeError):
        hash(Secret("a"))
    with pytest.raises(TypeError):
        vars(Secret("a"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("https://user:pw@host/path", "https://***@host/path"),
        ("at https://host/k?X-Amz-Signature=abc&x=1.", "at https://host/k?***"),
        ('"s3://k:s@b/x?y=1", then', '"s3://***@b/x?***", then'),
        ("two http://a/?b and http://c?d", "two http://a/?*** and http://c?***"),
        ("mail me@host? yes", "mail me@host? yes"),
        ("key hush-hush, hush-hush-2", "key ***, ***"),
        ("a short one", "a short one"),
    ],
)
def test_scrub_removes_credentials(text: str, shown: str) -> None:
    assert scrub(text, ["hush-hush", "hush-hush-2", "a", ""]) == shown
