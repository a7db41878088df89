"""Reads the position of a streaming query from its checkpoint, so that another query can continue
at this position.

Spark writes a file `offsets/N` before it runs batch N, and `commits/N` when the sink has all rows
of the batch (`OffsetSeqLog`, `CommitLog`). So the batch with the highest number in `commits` is the
last complete one.

    v1                              v2
    {"batchWatermarkMs":0, …}       {"batchWatermarkMs":0, …}
    <offset of the first source>    <name of a source>:<its offset>
    …                               …

A file of version 1 has the line `-` for a source that has no offset yet. Version 2 is used if
sources have names (Spark 4.2 and later).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import StreamOffsetError
from kts_source.options import option_texts
from kts_source.read.task_metrics import open_filesystem
from kts_source.store.local_store import local_root
from kts_source.store.open_store import refuse_credentials, scheme_of
from kts_source.store.storage_options import storage_options_from
from kts_source.streaming.offsets import position_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import Options
    from kts_source.streaming.offsets import StreamPosition

EARLIEST: Final = -2
_BATCH: Final = re.compile(r"(?:.*/)?(0|[1-9][0-9]{0,18})")
_NAMED: Final = re.compile(r"([A-Za-z0-9_]+):(\{.*\}|-)")
_NO_OFFSET: Final = "-"


def end_offsets(
    checkpoint: str,
    *,
    source: str | int | None = None,
    partitions: Mapping[str, int] | None = None,
    options: Options | None = None,
) -> str:
    """Returns the end of the last batch that a query has committed. Use the result as
    `startingOffsets` for `format("kafka")`, or for another stream or batch query of this source.

    Stop the query before calling this, because batches that it commits later are not included.

    Args:
        checkpoint: The checkpoint location.
        source: Name of the source, or its number in the query (from 0). Required if the query has
            several sources.
        partitions: Number of partitions of each topic. If given, the result has offset −2
            (earliest) for partitions that the query has not read, because Spark's Kafka source
            requires all partitions. Topics that the query has not read are omitted from the result.
        options: Storage options (`s3.*`, `storageOptions`) if the location needs them.

    Returns:
        JSON, `{"<topic>":{"<partition>":<next offset>}}`. The result does not contain topic ids, so
        check that no topic was deleted and created again in the meantime.

    Raises:
        StreamOffsetError: No batch is committed, the location is not a checkpoint, the checkpoint
            has an unknown version, or the query has several sources and `source` is missing.
    """
    position = committed_position(checkpoint, source=source, options=options)
    offsets: dict[str, dict[str, int]] = {}
    for topic, topic_position in sorted(position.topics.items()):
        wanted = dict.fromkeys(range((partitions or {}).get(topic, 0)), EARLIEST)
        offsets[topic] = {
            str(n): offset for n, offset in sorted({**wanted, **topic_position.offsets}.items())
        }
    return json.dumps(offsets)


def committed_position(
    checkpoint: str,
    *,
    source: str | int | None = None,
    options: Options | None = None,
) -> StreamPosition:
    """Returns the end of the last committed batch of a query; see `end_offsets`."""
    folder = _Folder(checkpoint, options)
    batches = folder.batches("commits")
    if not batches:
        raise StreamOffsetError(
            f"{checkpoint} has no committed batch. Use the checkpointLocation of a query that has"
            " finished a batch"
        )
    number = max(batches)
    lines = folder.text(f"offsets/{number}").split("\n")
    where = f"{checkpoint}, offsets/{number}"
    offsets = _offsets(lines, where)
    text = _chosen(offsets, source, where)
    if text == _NO_OFFSET:
        raise StreamOffsetError(f"{where}: the source has read nothing yet")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise StreamOffsetError(f"{where}: the offset of the source is not JSON") from None
    position = position_from_json(document)
    if position.is_initial or not position.topics:
        raise StreamOffsetError(f"{where}: the source has read nothing yet")
    return position


def _offsets(lines: list[str], where: str) -> dict[str, str]:
    """Parses the lines of an offset file. Returns the text of the offset for each source. Keys are
    the numbers of the sources in version 1, and their names in version 2.
    """
    version, texts = lines[0], [line for line in lines[2:] if line]
    if version == "v1":
        return {str(number): line for number, line in enumerate(texts)}
    if version == "v2":
        named = [_NAMED.fullmatch(line) for line in texts]
        if all(named):
            return {match[1]: match[2] for match in named if match is not None}
    raise StreamOffsetError(
        f"{where}: the offset log begins with {version[:20]!r} instead of v1 or v2, or has a line"
        " that cannot be read: a later Spark version wrote it, or it is damaged"
    )


def _chosen(offsets: Mapping[str, str], source: str | int | None, where: str) -> str:
    if source is None and len(offsets) == 1:
        return next(iter(offsets.values()))
    if str(source) in offsets and source is not None:
        return offsets[str(source)]
    which = (
        "choose one of them with source=:"
        if source is None
        else f"source {source!r} is not among them:"
    )
    raise StreamOffsetError(
        f"{where}: the query has {len(offsets)} sources; {which} {', '.join(offsets)}"
    )


class _Folder:
    """Reads the files of a checkpoint location, which is on this machine or in a store."""

    def __init__(self, path: str, options: Options | None) -> None:
        path = path.strip()
        refuse_credentials(path)
        self._path = path.rstrip("/")
        self._local = Path(local_root(path)) if scheme_of(path) == "file" else None
        storage = storage_options_from(option_texts(options or {})).reveal()
        self._files: Any = None if self._local is not None else open_filesystem(path, storage)

    def batches(self, name: str) -> list[int]:
        """Returns the batch numbers of the files in a folder. Temporary files and checksum files
        are ignored.
        """
        try:
            if self._local is not None:
                names = [path.name for path in (self._local / name).iterdir()]
            else:
                names = self._files.ls(f"{self._path}/{name}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        matches = (_BATCH.fullmatch(name) for name in names)
        return [int(match[1]) for match in matches if match is not None]

    def text(self, name: str) -> str:
        """Reads a file as text."""
        try:
            if self._local is not None:
                return (self._local / name).read_text("utf-8")
            return bytes(self._files.cat_file(f"{self._path}/{name}")).decode()
        except FileNotFoundError:
            raise StreamOffsetError(
                f"{self._path} has no {name}, although it is committed: files of the checkpoint"
                " are lost"
            ) from None
        except UnicodeDecodeError:
            raise StreamOffsetError(f"{self._path}/{name} is not text: it is damaged") from None
