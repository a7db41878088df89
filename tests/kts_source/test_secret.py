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


SHOWN: dict[str, Callable[[Secret[dict[str, str]]], str]] = {
    "repr": repr,
    "str": str,
    "format": "{:>20}".format,
    "f-string": lambda secret: f"{secret} {secret!r} {secret!s:<9}",
    "percent": lambda secret: "%s %r" % (secret, secret),  # noqa: UP031  # one more way
    "json": lambda secret: json.dumps({"a": [secret]}, default=str),
    "list": lambda secret: str([secret, {"k": secret}]),
    "dataclass": lambda secret: repr(Holder("n", secret)),
    "asdict": lambda secret: str(dataclasses.asdict(Holder("n", secret))),
}


@pytest.mark.parametrize("how", SHOWN)
def test_what_is_shown_is_masked(how: str) -> None:
    text = SHOWN[how](Secret(VALUE))
    assert "***" in text
    assert "hush" not in text
    assert "key" not in text


def test_json_without_a_default_refuses_unseen() -> None:
    with pytest.raises(TypeError) as caught:
        json.dumps(Secret(VALUE))
    assert "hush" not in str(caught.value)


def test_a_log_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("opened with %s and %r", Secret(VALUE), Secret(VALUE))
    assert "***" in caplog.text
    assert "hush" not in caplog.text


def test_a_traceback_with_locals_shows_nothing() -> None:
    secret = Secret(VALUE)
    try:
        raise ValueError(secret)
    except ValueError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    text = "".join(shown.format())
    assert "secret = ***" in text
    assert "hush" not in text


def test_it_travels_whole() -> None:
    secret = Secret(VALUE)
    for twin in (pickle.loads(pickle.dumps(secret)), copy.copy(secret), copy.deepcopy(secret)):
        assert twin.reveal() == VALUE
        assert twin == secret
        assert repr(twin) == "***"


def test_it_compares_by_value_and_has_no_hash_and_no_dict() -> None:
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
def test_scrub(text: str, shown: str) -> None:
    assert scrub(text, ["hush-hush", "hush-hush-2", "a", ""]) == shown
