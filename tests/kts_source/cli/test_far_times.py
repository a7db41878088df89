"""Tests records with timestamps that Python's `datetime` cannot represent. A scan must return each
of these rows, or raise an error with its offset.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import kts_source
from kts_source.cli.app import main
from kts_source.errors import TieredKafkaError
from kts_source.texts import time_text
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

MOST_MS = (2**63 - 1) // 1000
LEAST_MS = -(2**63 // 1000)
TIMES_MS = (0, -1, 1_700_000_000_000, 1_700_000_000_000_000, MOST_MS, LEAST_MS, 253402300800000)


def tier(folder: Path, *times_ms: int) -> dict[str, str]:
    log = LogBuilder()
    for number, time_ms in enumerate(times_ms):
        log.append([SimpleRecord(b"v%d" % number, timestamp=time_ms)])
    writer = AivenTierWriter(folder, topic="t", topic_id="lZ6vvmajTWKDBUTV6SQAtQ")
    for segment in log.build().segments:
        writer.write_segment(segment)
    return {"path": str(folder), "subscribe": "t", "cache": "false"}


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000+00:00"),
        (-1, "1969-12-31T23:59:59.999+00:00"),
        (253402300799999, "9999-12-31T23:59:59.999+00:00"),
        # numpy's datetime64 has the same text.
        (253402300800000, "+10000-01-01T00:00:00.000+00:00"),
        (1_700_000_000_000_000, "+55840-11-08T22:13:20.000+00:00"),
        (-62135596800001, "0000-12-31T23:59:59.999+00:00"),
        (-62167219200001, "-0001-12-31T23:59:59.999+00:00"),
    ],
)
def test_times_before_year_1_and_after_year_9999_are_formatted(
    milliseconds: int, text: str
) -> None:
    assert time_text(milliseconds * 1000) == text


def test_cat_shows_rows_with_times_beyond_python_datetime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier(tmp_path, *TIMES_MS)
    assert main(["cat", "--path", str(tmp_path), "--subscribe", "t"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["value"] for row in rows] == [f"v{n}" for n in range(len(TIMES_MS))]
    assert [row["timestamp"] for row in rows] == [time_text(ms * 1000) for ms in TIMES_MS]


@pytest.mark.parametrize("time_ms", [MOST_MS + 1, LEAST_MS - 1, 2**63 - 1, -(2**63)])
def test_time_beyond_the_range_of_microseconds_raises_error_that_names_record(
    time_ms: int, tmp_path: Path
) -> None:
    options = tier(tmp_path, 0, time_ms)
    with pytest.raises(TieredKafkaError, match=r"[tT]imestamp") as caught:
        scan(options)
    error = caught.value
    assert (error.topic, error.partition) == ("t", 0)
    # For 2^63 − 1, the manifest raises before the record is read.
    assert error.offset == (0 if time_ms == 2**63 - 1 else 1)


def test_options_select_records_with_times_beyond_python_datetime(tmp_path: Path) -> None:
    options = tier(tmp_path, *TIMES_MS)

    def times(**source_options: str) -> list[int]:
        rows = scan({**options, **source_options})
        return [value // 1000 for value in rows["timestamp"].cast(pa.int64()).to_pylist()]

    for low in (*TIMES_MS, 2**63 - 1, -(2**63)):
        assert times(timestampRange=f"{low},") == [ms for ms in TIMES_MS if ms >= low]
        assert times(timestampRange=f",{low}") == [ms for ms in TIMES_MS if ms < low]
    end = "timestamp >= TIMESTAMP '9999-12-31 23:59:59.999999Z'"
    assert times(where=end) == [1_700_000_000_000_000, MOST_MS, 253402300800000]
    assert times(where="timestamp < TIMESTAMP '0001-01-01 00:00:00Z'") == [LEAST_MS]
    assert times(startingTimestamp=f"{MOST_MS}") == list(TIMES_MS[4:])
    assert times(endingTimestamp=f"{MOST_MS}") == list(TIMES_MS[:4])
    assert times(endingTimestamp=f"{2**63 - 1}") == list(TIMES_MS)
    assert "t-0" in kts_source.plan({**options, "timestampRange": f"{2**63 - 1},"}).explain()
    assert kts_source.describe(options).to_arrow().num_rows == 1


@pytest.mark.parametrize("zone", ["UTC", "+18:00", "-18:00", "Europe/Zurich"])
@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31"])
def test_first_and_last_day_of_python_datetime_are_parsed_in_conditions(
    zone: str, day: str, tmp_path: Path
) -> None:
    options = tier(tmp_path, 0)
    for where in (
        f"timestamp >= DATE '{day}'",
        f"timestamp < TIMESTAMP '{day} 00:00:00'",
        f"timestamp < TIMESTAMP '{day} 23:59:59.999999'",
    ):
        assert scan({**options, "where": where, "timeZone": zone}).num_rows == int(
            (day < "1970") == (">=" in where)
        )
