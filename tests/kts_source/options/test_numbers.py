"""Checks that a scan works with each accepted number for each numeric option, and that the error
for a rejected number names the option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.options import OPTIONS, parse_options
from kts_source.store.open_store import open_store
from kts_source.store.storage_options import storage_options_from
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

PARTITION = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
NUMBERS = (
    *("startingTimestamp", "endingTimestamp", *PARTITION, "maxTimestampAheadMs", "timestampRange"),
    *("minPartitions", "maxRecordsPerPartition", "targetPartitionBytes", "maxSegmentsPerTask"),
    *("maxPlanBytes", "maxPlanRequests", "maxBatchBytes", "maxConcurrentRequests"),
    *("prefetchBytes", "fetchConnectTimeoutMs", "fetchReadTimeoutMs", "fetchDeadlineMs"),
    *("maxAttempts", "hedgeAfterMs", "indexCacheBytes", "indexCacheTtlMs", "chunkCacheBytes"),
    *("chunkCacheTtlMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"),
    "maxSegmentsPerTrigger",
)
TEXTS = (
    *("0", "1", "-1", "-2", "10", "1024", "2147483647", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e3", "1.5", "0x10"),
    *(
        "99999999999999999999999",
        "2g",
        "4g",
        "8388608t",
        "9999999t",
        "nan",
        "٣",
        " 7 ",
        "+7",
        "1_0",
    ),
)
MANY = ("startingTimestamp", *PARTITION)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tier")
    log = LogBuilder()
    for _ in range(2):
        log.append([SimpleRecord(b"v" * 100, timestamp=1000 + n) for n in range(5)])
        log.roll()
    writer = AivenTierWriter(folder, topic="t", topic_id="lZ6vvmajTWKDBUTV6SQAtQ", chunk_size=64)
    for segment in log.build().segments:
        writer.write_segment(segment)
    return folder


def test_list_of_number_options_is_complete() -> None:
    def takes_a_number(name: str) -> bool:
        try:
            parse_options({"path": "/", "subscribe": "t", "chunkCacheBytes": "1g", name: "x"})
        except InvalidOptionError as error:
            return "number" in str(error) or "size" in str(error)
        return False

    number_options = {option.name for option in OPTIONS if takes_a_number(option.name)}
    assert number_options <= {*NUMBERS}


@pytest.mark.parametrize("name", NUMBERS)
def test_number_option_raises_error_that_names_it_or_changes_no_rows(
    name: str, tier: Path, tmp_path: Path
) -> None:
    source_options = {"path": str(tier), "subscribe": "t", "cacheDir": str(tmp_path / "cache")}
    accepted = 0
    for text in TEXTS:
        value = f'{{"t":{{"0":{text}}}}}' if name in PARTITION else text
        value = f"{text}," if name == "timestampRange" else value
        changed_options = {**source_options, name: value}
        if name == "chunkCacheTtlMs":
            changed_options["chunkCacheBytes"] = "1g"
        try:
            parse_options(changed_options)
        except InvalidOptionError as error:
            assert name in str(error), text  # noqa: PT017  # one of many values
            continue
        accepted += 1
        try:
            rows = scan(changed_options).num_rows
        except TieredKafkaError as error:
            assert type(error).__name__ in (  # noqa: PT017
                "PlanTooLargeError",
                "OffsetOutOfRangeError",
                "CorruptSegmentError",
            ), text
            if isinstance(error, kts_source.errors.CorruptSegmentError):
                assert name == "maxBatchBytes"
            continue
        dated = ("Timestamp" in name or name == "timestampRange") and "Ahead" not in name
        assert rows == 10 or dated, text
    assert accepted > 1


@pytest.mark.parametrize(("minimum", "maximum"), [("61", "2147483647")])
def test_max_batch_bytes_outside_its_limits_is_refused(minimum: str, maximum: str) -> None:
    for text in ("60", "2g", "4g", "10"):
        match = rf"maxBatchBytes.*{minimum}.*{maximum}.*{text}"
        with pytest.raises(InvalidOptionError, match=match):
            parse_options({"path": "/", "subscribe": "t", "maxBatchBytes": text})
    for text in (minimum, maximum):
        parsed = parse_options({"path": "/", "subscribe": "t", "maxBatchBytes": text})
        assert parsed.max_batch_bytes == int(text)


@pytest.mark.parametrize("name", ["s3.connect-timeout", "s3.request-timeout"])
@pytest.mark.parametrize("text", ["0", "-1", "1e300", "1e3", "inf", "nan", "9223372036854775807"])
def test_invalid_s3_timeouts_are_refused(name: str, text: str) -> None:
    options = {name: text, "s3.region": "x", "s3.anonymous": "true"}
    if text == "1e3":
        open_store("s3://bucket", storage_options_from(options)).close()
        return
    with pytest.raises(InvalidOptionError, match=name):
        storage_options_from(options)
