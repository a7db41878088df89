from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text

KNOWN = {
    "lZ6vvmajTWKDBUTV6SQAtQ": "959eafbe-66a3-4d62-8305-44d5e92400b5",
    "adh9f8BMS4anaUnD8KWfWg": "69d87d7f-c04c-4b86-a769-49c3f0a59f5a",
    "MWJ6FHTfRYy67jzwZdeqSQ": "31627a14-74df-458c-baee-3cf065d7aa49",
    "tqimKeZwStOEOwRzT3L5oQ": "b6a8a629-e670-4ad3-843b-04734f72f9a1",
    "AAAAAAAAAAAAAAAAAAAAAA": "00000000-0000-0000-0000-000000000000",
    "AAAAAAAAAAAAAAAAAAAAAQ": "00000000-0000-0000-0000-000000000001",
}


@pytest.mark.parametrize(("text", "plain"), KNOWN.items())
def test_known_uuids_convert_both_ways(text: str, plain: str) -> None:
    assert uuid_from_text(text) == uuid.UUID(plain)
    assert uuid_to_text(uuid.UUID(plain)) == text


@settings(deadline=None)
@given(st.uuids())
def test_uuid_round_trips(value: uuid.UUID) -> None:
    assert uuid_from_text(uuid_to_text(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAAAAAAAAAAAAAAAAAAAA",  # 21 characters
        "AAAAAAAAAAAAAAAAAAAAAAA",  # 23
        "AAAAAAAAAAAAAAAAAAAAAB",  # sets bits after the 16th byte
        "AAAAAAAAAAAAAAAAAAAA==",
        "AAAAAAAAAA+AAAAAAAAAAA",  # standard instead of URL-safe base64
        "AAAAAAAAAA/AAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAA\n",
        "ÄAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_invalid_uuid_text_raises(text: str) -> None:
    with pytest.raises(InvalidManifestError):
        uuid_from_text(text)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_uuid_text_parses_or_raises(text: str) -> None:
    try:
        value = uuid_from_text(text)
    except InvalidManifestError:
        return
    assert uuid_to_text(value) == text
