from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import InvalidManifestError
from segment_format.manifest.object_names import CustomMetadata, parse_custom_metadata
from tests.golden_data import VECTORS
from tests.segment_format.outcomes import assert_value_or_positioned_error

CASES: list[dict[str, Any]] = json.loads(
    (VECTORS / "aiven_vectors" / "custom_metadata.json").read_text()
)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
fields = st.builds(
    CustomMetadata,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | texts,
    st.none() | texts,
)


def metadata_of(case: dict[str, Any]) -> CustomMetadata:
    values = case["fields"]
    return CustomMetadata(values.get("0"), values.get("1"), values.get("2"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hex"][:12])
def test_custom_metadata_matches_plugin_vectors(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    assert parse_custom_metadata(data) == metadata_of(case)
    assert metadata_of(case).to_bytes() == data


@pytest.mark.parametrize("data", [None, b"", b"\0"])
def test_empty_custom_metadata_has_no_fields(data: bytes | None) -> None:
    assert parse_custom_metadata(data) == CustomMetadata()
    assert CustomMetadata().to_bytes() is None


def test_unknown_fields_are_skipped() -> None:
    data = bytes.fromhex("03 00 02 c801 05 03 010203 09 00")
    assert parse_custom_metadata(data) == CustomMetadata(100)


@settings(deadline=None)
@given(fields)
def test_custom_metadata_round_trips(metadata: CustomMetadata) -> None:
    assert parse_custom_metadata(metadata.to_bytes()) == metadata


@pytest.mark.parametrize(
    ("data", "position"),
    [
        ("01", 1),  # announces a field, but has none
        ("ffffffff0f", 5),  # more fields than bytes
        ("8080808080808000", 5),  # varint of six bytes
        ("02 01 02 0261 00 02 c801", 6),  # tags descending
        ("02 00 01 00 00 01 00", 5),  # the same tag twice
        ("01 00 02 c8", 3),  # truncated value
        ("01 00 02 0000", 4),  # value longer than its number
        ("01 00 01 80", 4),  # unfinished varint
        ("01 01 02 0561", 4),  # text longer than its field
        ("01 01 02 02ff", 5),  # not UTF-8
        ("01 01 01 00", 4),  # null text
        ("00 00", 1),  # bytes after the end
    ],
)
def test_invalid_custom_metadata_raises_with_position(data: str, position: int) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        parse_custom_metadata(bytes.fromhex(data))
    assert caught.value.position == position


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_parse_or_raise(data: bytes) -> None:
    assert_value_or_positioned_error(lambda: parse_custom_metadata(data), size=len(data))


@settings(deadline=None)
@given(fields.map(CustomMetadata.to_bytes).filter(bool), st.data())
def test_changed_custom_metadata_parses_or_raises(section: bytes, data: st.DataObject) -> None:
    changed = bytearray(section)
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    assert_value_or_positioned_error(
        lambda: parse_custom_metadata(bytes(changed)), size=len(changed)
    )
