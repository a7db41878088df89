"""What botocore logs at level DEBUG shows requests, but no session token."""

from __future__ import annotations

import logging

import pytest

from kts_source.store.botocore_log import hide_tokens
from tests.kts_source.store.one_object import DATA, KEYS, OneObject

TOKEN = "IQoJb3JpZ2luX2VjEJr//+a/b=="


def test_a_request_by_s3fs(clean_environment: None, caplog: pytest.LogCaptureFixture) -> None:
    with OneObject().serving() as bucket:
        store = bucket.store(**KEYS, **{"s3.session-token": TOKEN})
        with caplog.at_level(logging.DEBUG, "botocore"):
            assert store.get_range("x", 0, 9) == DATA[:9]
        store.close()
    ((_, headers),) = bucket.seen
    assert headers["x-amz-security-token"] == TOKEN
    assert "x-amz-security-token:***" in caplog.text
    assert "'X-Amz-Security-Token': b'***'" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"<SessionToken>{TOKEN}</SessionToken>", "<SessionToken>***</SessionToken>"),
        (f"b'<SecretAccessKey>{TOKEN}</SecretAccessKey>'", "b'<SecretAccessKey>***</"),
        (f"{{'WebIdentityToken': '{TOKEN}', 'x': 1}}", "{'WebIdentityToken': '***', 'x': 1}"),
        (f"https://h/k?X-Amz-Security-Token={TOKEN}&a=b", "X-Amz-Security-Token=***&a=b"),
        ("100 % of it", "100 % of it"),
    ],
)
def test_other_texts(text: str, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    hide_tokens()
    hide_tokens()
    logger = logging.getLogger("botocore.parsers")
    assert len(logger.filters) == 1
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.debug("Response body: %s", text)
    assert shown in caplog.text
    assert TOKEN not in caplog.text
