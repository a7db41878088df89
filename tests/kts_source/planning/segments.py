"""Builds metadata of remote segments for tests that do not read objects."""

from __future__ import annotations

from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
)
from segment_format.index.checkpoints import EpochEntry
from segment_format.manifest.chunk_index import FixedChunkIndex


def make_segment(
    start: int,
    end: int,
    epochs: dict[int, int] | None = None,
    *,
    name: str = "",
    max_timestamp_ms: int = 0,
    event_timestamp_ms: int = 0,
    end_is_exact: bool = True,
) -> RemoteSegment:
    """Returns the metadata of a segment with offsets `start` to `end`, including both.

    By default, all records have leader epoch 0.
    """
    key = name or f"{start:020d}-{end}"
    log = ObjectRef(f"{key}.log", 100, None)
    indexes = ObjectRef(f"{key}.indexes", 0, None)
    return RemoteSegment(
        topic="t",
        topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
        partition=0,
        segment_id=key,
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=event_timestamp_ms,
        leader_epochs=tuple(EpochEntry(*pair) for pair in (epochs or {0: start}).items()),
        objects=SegmentObjects(
            log=log,
            chunk_index=FixedChunkIndex(
                original_chunk_size=100,
                original_file_size=100,
                transformed_chunk_size=100,
                final_transformed_chunk_size=100,
            ),
            compression=False,
            encryption=None,
            indexes={IndexType.OFFSET: StoredIndex(indexes, 0, 0)},
        ),
        end_is_exact=end_is_exact,
    )


def make_lineage(**epochs: int) -> tuple[EpochEntry, ...]:
    """Returns checkpoint entries from keywords such as `e3=10`: epoch 3 begins at offset 10."""
    return tuple(EpochEntry(int(name[1:]), start) for name, start in epochs.items())
