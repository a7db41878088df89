"""Checks that DEBUG messages of botocore show no session tokens."""

from __future__ import annotations

import logging

import pytest

from kts_source.store.s3_ranges import hide_tokens
from tests.kts_source.store.fake_cloud import DATA
from tests.kts_source.store.one_object import BY_S3FS, KEYS, OneObject

TOKEN = "IQoJb3JpZ2luX2VjEJr//+a/b=="


@pytest.mark.parametrize("options", [{}, BY_S3FS], ids=["own", "s3fs"])
def test_token_of_a_request_is_masked_in_the_log(
    clean_environment: None, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    with OneObject().serving() as bucket:
        store = bucket.store(**KEYS, **options, **{"s3.session-token": TOKEN})
        with caplog.at_level(logging.DEBUG, "botocore"):
            assert store.get_range("x", 0, 9) == DATA[:9]
        store.close()
    ((_, headers),) = bucket.seen
    assert headers["x-amz-security-token"] == TOKEN
    assert "x-amz-security-token:***" in caplog.text
    if options:
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
def test_tokens_in_logged_xml_dictionaries_and_urls_are_masked(
    text: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    hide_tokens()
    hide_tokens()
    logger = logging.getLogger("botocore.parsers")
    assert len(logger.filters) == 1
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.debug("Response body: %s", text)
    assert shown in caplog.text
    assert TOKEN not in caplog.text
