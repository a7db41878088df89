"""The position of a stream, which Spark stores as one line of JSON in a checkpoint's offset log.

    new query  {"v":1,"at":"initial"}
    else       {"v":1,
                "topics":{"<topic>":{"id":"<topic id>",
                                     "p":{"<partition>":<next offset>, …},
                                     "e":{"<partition>":<leader epoch of the record before it>, …}},
                          …},
                "from":{"<topic>":{"id":"<topic id>","p":{"<partition>":<first offset>, …}}, …}}

Topics are sorted by name and partitions by number, because Spark compares positions as text. A
position is the end of a batch. The batch usually starts where the batch before it ended. `from` has
the start offset of each partition in which it starts elsewhere: all partitions in the first batch,
new partitions, partitions of a topic that was created again, and partitions in which lost offsets
were skipped. The position before the first batch is a constant without offsets, because Spark never
passes it to a source again after the first batch.

Offsets of Spark's Kafka source (`KafkaSourceOffset`, `JsonUtils.partitionOffsets`) are accepted as
positions, too: `{"<topic>":{"<partition>":<next offset>}}`.

`end_offsets` reads the position of a query from its checkpoint, so that another query can continue
there. Spark writes a file `offsets/N` before it runs batch N, and `commits/N` when the sink has all
rows of the batch (`OffsetSeqLog`, `CommitLog`). So the last complete batch is the one with the
highest number in `commits`.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kts_source.errors import StreamOffsetError
from kts_source.options import option_texts
from kts_source.read.task_metrics import open_filesystem
from kts_source.store.local_store import local_root
from kts_source.store.open_store import refuse_credentials, scheme_of
from kts_source.store.storage_options import storage_options_from

if TYPE_CHECKING:
    from kts_source.options import Options


VERSION: Final = 1
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_PARTITION: Final = (1 << 31) - 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")

Offsets: TypeAlias = Mapping[int, int]
"""Mapping from partition number to offset."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """A stream's position in one topic.

    Attributes:
        topic_id: Id of the topic; `None` if Spark's Kafka source wrote the position.
        offsets: The next offset to read in each partition.
        epochs: Leader epoch of the record before the next offset. Contains only partitions for
            which this epoch is known.
    """

    topic_id: str | None
    offsets: Offsets
    epochs: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicBegin:
    """Start offsets of a batch in one topic. Contains the partitions in which the batch does not
    start where the batch before it ended.
    """

    topic_id: str
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A stream's position.

    Attributes:
        topics: Position in each topic, by name.
        begins: Start offsets of the batch that ends here, by topic name; see `from` in the module
            docstring.
        is_initial: True if no batch was read yet. Then the options determine where the first batch
            starts.
    """

    topics: Mapping[str, TopicPosition]
    begins: Mapping[str, TopicBegin] = field(default_factory=dict)
    is_initial: bool = False


INITIAL: Final = StreamPosition({}, is_initial=True)


def position_to_json(position: StreamPosition) -> dict[str, Any]:
    """Converts a position to JSON types. Equal positions give equal JSON text."""
    if position.is_initial:
        return {"v": VERSION, "at": "initial"}
    topics = {}
    for name, topic in sorted(position.topics.items()):
        topics[name] = {"id": topic.topic_id, "p": _texts(topic.offsets)}
        if topic.epochs:
            topics[name]["e"] = _texts(topic.epochs)
    document: dict[str, Any] = {"v": VERSION, "topics": topics}
    if position.begins:
        document["from"] = {
            name: {"id": begin.topic_id, "p": _texts(begin.offsets)}
            for name, begin in sorted(position.begins.items())
        }
    return document


def position_from_json(document: object) -> StreamPosition:
    """Parses a position that Spark passes back to the source.

    Raises:
        StreamOffsetError: A later release wrote the document, or it is not a position.
    """
    if not isinstance(document, Mapping):
        raise _malformed("it is not an object")
    version = document.get("v")
    if type(version) is not int:
        return _of_kafka_source(document)
    if version != VERSION:
        raise StreamOffsetError(
            f"the checkpoint was written with offsets of version {version}, and this release of"
            f" tiered-kafka reads version {VERSION}: continue with the release that wrote it, or"
            " begin a new checkpoint"
        )
    if "at" in document:
        if dict(document) != position_to_json(INITIAL):
            raise _malformed(f"it has 'at': {document['at']!r}, but is not the initial position")
        return INITIAL
    _check_members("the position", document, {"v", "topics"}, {"from"})
    topics = {}
    for name, topic in _object("topics", document["topics"]).items():
        _check_members(f"topic {name!r}", topic, {"id", "p"}, {"e"})
        offsets = _offsets(name, topic["p"])
        epochs = _offsets(name, topic.get("e", {}))
        if not epochs.keys() <= offsets.keys():
            raise _malformed(f"topic {name!r} has a leader epoch for a partition without offset")
        topics[name] = TopicPosition(_topic_id(name, topic["id"], optional=True), offsets, epochs)
    begins = {}
    for name, begin in _object("from", document.get("from", {})).items():
        _check_members(f"the begin of topic {name!r}", begin, {"id", "p"})
        offsets = _offsets(name, begin["p"])
        topic_id = _topic_id(name, begin["id"])
        topic_position = topics.get(name)
        if (
            topic_position is None
            or topic_position.topic_id != topic_id
            or not offsets.keys() <= topic_position.offsets.keys()
        ):
            raise _malformed(
                f"it has start offsets in partitions of topic {name!r} without end offset"
            )
        begins[name] = TopicBegin(topic_id, offsets)
    return StreamPosition(topics, begins)


def _of_kafka_source(document: Mapping[Any, Any]) -> StreamPosition:
    return StreamPosition(
        {name: TopicPosition(None, _offsets(name, p)) for name, p in document.items()}
    )


def _texts(offsets: Offsets) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _offsets(topic: str, value: object) -> dict[int, int]:
    offsets = {}
    for text, offset in _object(f"topic {topic!r}", value).items():
        if not isinstance(text, str) or not _NUMBER.fullmatch(text) or int(text) > _MAX_PARTITION:
            raise _malformed(f"topic {topic!r} has an invalid partition {text!r}")
        if type(offset) is not int or not 0 <= offset <= _MAX_OFFSET:
            raise _malformed(f"{topic}-{text} has an invalid offset {offset!r}")
        offsets[int(text)] = offset
    return offsets


def _topic_id(topic: str, value: object, *, optional: bool = False) -> Any:  # noqa: ANN401
    if (value is None and optional) or (isinstance(value, str) and value):
        return value
    raise _malformed(f"topic {topic!r} has an invalid id {value!r}")


def _object(what: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(f"{what} is not an object")
    return value


def _check_members(
    what: str, value: object, needed: set[str], optional: frozenset[str] | set[str] = frozenset()
) -> None:
    names = _object(what, value).keys()
    if not needed <= names <= needed | optional:
        raise _malformed(
            f"{what} has members {sorted(map(str, names))}, but needs {sorted(needed)}"
        )


def _malformed(reason: str) -> StreamOffsetError:
    return StreamOffsetError(
        f"the checkpoint holds no offset of this source: {reason}. If another source wrote"
        " it, begin a new checkpoint, and set startingOffsets"
    )


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Offsets [start, stop) of one partition in a micro-batch.

    Attributes:
        epoch: Leader epoch that the last record had when the end of the batch was chosen; `None` if
            unknown.
    """

    partition: TopicPartition
    topic_id: str
    start: int
    stop: int
    epoch: int | None = None


def batch_ranges(start: StreamPosition, end: StreamPosition) -> list[BatchRange]:
    """Returns the non-empty offset ranges between two positions, sorted by topic and partition.

    After a restart, Spark 4.0 and 4.1 pass the same position as start and end. Then there are no
    ranges, even if the position has start offsets in `from`.

    Raises:
        StreamOffsetError: The positions do not belong to the same batch, or Spark's Kafka source
            started the batch.
    """
    if start == end:
        return []
    ranges = []
    for name, topic in sorted(end.topics.items()):
        before = start.topics.get(name)
        begins = end.begins[name].offsets if name in end.begins else {}
        is_same = before is not None and before.topic_id in (None, topic.topic_id)
        for number, stop in sorted(topic.offsets.items()):
            first = begins.get(number)
            if first is None and before is not None and is_same:
                first = before.offsets.get(number)
            if first is None or first > stop:
                raise StreamOffsetError(
                    f"the checkpoint has no start offset for the batch that ends at offset {stop}"
                    f" of topic id {topic.topic_id}: the lines of the checkpoint belong to"
                    " different batches",
                    topic=name,
                    partition=number,
                )
            if first == stop:
                continue
            if topic.topic_id is None:
                raise StreamOffsetError(
                    "the checkpoint was written by Spark's Kafka source and holds a batch that was"
                    " not finished: finish it with that source first",
                    topic=name,
                    partition=number,
                )
            partition, epoch = TopicPartition(name, number), topic.epochs.get(number)
            ranges.append(BatchRange(partition, topic.topic_id, first, stop, epoch))
    return ranges


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
    offsets = _source_offsets(lines, where)
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


def _source_offsets(lines: list[str], where: str) -> dict[str, str]:
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
