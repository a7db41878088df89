"""Writes a small tier whose values are texts, and defines a transform that returns the texts as a
column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START_MS = 1_700_000_000_000
TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"


def tier_of(
    folder: Path, texts: Sequence[str | None], *, last_ms: int = START_MS
) -> dict[str, str]:
    """Writes a topic `t` with one record for each text in `texts`. The last record has the
    timestamp `last_ms`. Returns the options to read the topic.
    """
    log = LogBuilder()
    log.append(
        [
            SimpleRecord(
                None if text is None else text.encode(),
                b"k",
                timestamp=last_ms if number == len(texts) - 1 else START_MS,
            )
            for number, text in enumerate(texts)
        ]
    )
    writer = AivenTierWriter(str(folder), topic="t", partition=0, topic_id=TOPIC_ID)
    for segment in log.build().segments:
        writer.write_segment(segment)
    return {"path": str(folder), "subscribe": "t"}


def by_country(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns two columns: `offset`, and `country` with the value of the record as text."""
    columns = [batch["offset"], batch["value"].cast(pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["offset", "country"])
