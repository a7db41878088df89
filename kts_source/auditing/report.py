"""What an audit found, and what it states of each partition, as values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.auditing.kinds import KINDS, Kind, Severity
from kts_source.notebook import rows_table
from kts_source.texts import camel_case

if TYPE_CHECKING:
    from collections.abc import Iterable

REPORT_VERSION: Final = 1
_ORDER: Final = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, at one place.

    Attributes:
        name: Of its kind, a key of `KINDS`.
        topic: Topic.
        topic_id: Incarnation of the topic.
        partition: Partition number.
        start: First offset concerned, inclusive; `None` where nothing tells.
        stop: One past the last; `None` where nothing tells.
        objects: Keys of the objects concerned, below the root of the store.
        stored_bytes: What these objects take in the store, as listed.
        detail: What is wrong there, in words.
        dollars_a_month: About what keeping these objects costs, at list prices of S3.
    """

    name: str
    topic: str
    topic_id: str
    partition: int
    start: int | None
    stop: int | None
    objects: tuple[str, ...]
    stored_bytes: int
    detail: str
    dollars_a_month: float = 0.0

    @property
    def kind(self) -> Kind:
        """Severity, meaning and advice."""
        return KINDS[self.name]

    @property
    def severity(self) -> Severity:
        """Of its kind."""
        return self.kind.severity


@dataclass(frozen=True, slots=True)
class PartitionStatement:
    """What the tier serves of a partition, and how far that was proven.

    Attributes:
        topic: Topic.
        topic_id: The incarnation that is read.
        partition: Partition number.
        start: First served offset, inclusive; this and what follows is `None` where the level does
            not tell.
        stop: One past the last served offset.
        last_stable_offset: Where `read_committed` ends, exclusive; `None` also where side files do
            not tell.
        segments: Whole segments, served or not.
        stored_bytes: All listed objects of the partition.
        is_whole: Whether every offset of [start, stop) is served and nothing in the partition is an
            error, as far as the level goes.
        records: Records of the served offsets, markers left out; this and what follows only at
            level `bytes`, and only where each of these offsets was read and is sound.
        batches: Batches that hold served offsets, those of markers included.
        digest: Of these batches' base offsets and checksums, 256 bits in hex; module `digest` has
            the definition. It depends on neither chunks, encryption and compression of the tier
            nor segment borders.
    """

    topic: str
    topic_id: str
    partition: int
    start: int | None
    stop: int | None
    last_stable_offset: int | None
    segments: int
    stored_bytes: int
    is_whole: bool
    records: int | None = None
    batches: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that an audit has to say.

    Attributes:
        level: How far it looked.
        audited_ms: When it began, in ms since 1970.
        path: Root of the tier, free of credentials.
        findings: Worst first, then by topic, partition and offset.
        partitions: In order of topic and partition.
    """

    level: str
    audited_ms: int
    path: str
    findings: tuple[Finding, ...]
    partitions: tuple[PartitionStatement, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)

    @property
    def exit_code(self) -> int:
        """0 without errors, 3 where offsets that the tier should hold are missing, else 1."""
        if any(one.kind.loses_data for one in self.errors):
            return 3
        return 1 if self.errors else 0

    @property
    def orphan_bytes(self) -> int:
        """Stored bytes of objects that nobody needs, as far as the tier tells."""
        return sum(one.stored_bytes for one in self.findings if one.kind.is_orphan)

    @property
    def orphan_dollars_a_month(self) -> float:
        """About what they cost."""
        return sum((one.dollars_a_month for one in self.findings if one.kind.is_orphan), 0.0)

    @property
    def records(self) -> int | None:
        """Records of all partitions together, where each of them knows."""
        counts = [part.records for part in self.partitions]
        return None if None in counts else sum(count for count in counts if count is not None)

    def to_dict(self) -> dict[str, Any]:
        """The report as the values of JSON; the page on audits has its schema."""
        return {
            "version": REPORT_VERSION,
            "level": self.level,
            "auditedMs": self.audited_ms,
            "path": self.path,
            "exitCode": self.exit_code,
            "records": self.records,
            "orphanBytes": self.orphan_bytes,
            "orphanDollarsAMonth": round(self.orphan_dollars_a_month, 6),
            "findings": [_finding(one) for one in self.findings],
            "partitions": [
                {camel_case(name): value for name, value in asdict(part).items()}
                for part in self.partitions
            ],
        }

    def to_json(self) -> str:
        """The report as JSON, in ASCII: terminals obey some of what names in a store may hold."""
        return json.dumps(self.to_dict(), indent=1)

    def _repr_html_(self) -> str:
        """Tables for notebooks: the findings, and a row a partition."""
        title = (
            f"Audit at level {self.level}: {len(self.errors):,} errors,"
            f" {len(self.findings):,} findings in {self.path}"
        )
        header = ("severity", "finding", "partition", "from offset", "what is wrong", "to do")
        findings = [
            (
                one.severity.value,
                one.name,
                f"{one.topic}-{one.partition}",
                "" if one.start is None else one.start,
                one.detail,
                one.kind.advice,
            )
            for one in self.findings
        ]
        parts = [
            (
                f"{part.topic}-{part.partition}",
                *("?" if value is None else value for value in (part.start, part.stop)),
                part.segments,
                "" if part.records is None else part.records,
                "whole" if part.is_whole else "NOT WHOLE",
            )
            for part in self.partitions
        ]
        places = ("partition", "start", "stop", "segments", "records", "")
        served = rows_table("What is served", places, parts)
        return (rows_table(title, header, findings) if findings else "") + served

    @classmethod
    def from_json(cls, text: str) -> AuditReport:
        """The report that `to_json` gave.

        Raises:
            ValueError: The text is no report, or one of another version.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("version") != REPORT_VERSION:
            raise ValueError(f"not of version {REPORT_VERSION}")
        try:
            findings = tuple(_finding_of(one) for one in document["findings"])
            partitions = tuple(_statement_of(one) for one in document["partitions"])
            path = _typed(document, "path", str)
            return cls(
                _typed(document, "level", str),
                _typed(document, "auditedMs", int),
                path,
                findings,
                partitions,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"malformed: {error}") from None


def _typed(document: Any, name: str, *kinds: type) -> Any:  # noqa: ANN401  # of JSON
    value = document[name]
    if type(value) not in kinds:
        raise TypeError(f"{name} is a {type(value).__name__}")
    return value


def _finding_of(one: Any) -> Finding:  # noqa: ANN401
    kind = _typed(one, "kind", str)
    if kind not in KINDS:
        raise TypeError(f"no such kind of finding: {kind!r}")
    objects = _typed(one, "objects", list)
    if not all(type(key) is str for key in objects):
        raise TypeError("objects are texts")
    return Finding(
        kind,
        _typed(one, "topic", str),
        _typed(one, "topicId", str),
        _typed(one, "partition", int),
        _typed(one, "start", int, type(None)),
        _typed(one, "stop", int, type(None)),
        tuple(objects),
        _typed(one, "storedBytes", int),
        _typed(one, "detail", str),
        float(_typed(one, "dollarsAMonth", float, int)),
    )


_STATEMENT: Final[dict[str, tuple[type, ...]]] = {
    "topic": (str,),
    "topic_id": (str,),
    "partition": (int,),
    "start": (int, type(None)),
    "stop": (int, type(None)),
    "last_stable_offset": (int, type(None)),
    "segments": (int,),
    "stored_bytes": (int,),
    "is_whole": (bool,),
    "records": (int, type(None)),
    "batches": (int, type(None)),
    "digest": (str, type(None)),
}


def _statement_of(one: Any) -> PartitionStatement:  # noqa: ANN401
    values = {name: _typed(one, camel_case(name), *kinds) for name, kinds in _STATEMENT.items()}
    return PartitionStatement(**values)


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "kind": one.name,
        "severity": one.severity.value,
        "topic": one.topic,
        "topicId": one.topic_id,
        "partition": one.partition,
        "start": one.start,
        "stop": one.stop,
        "objects": list(one.objects),
        "storedBytes": one.stored_bytes,
        "dollarsAMonth": one.dollars_a_month,
        "detail": one.detail,
        "meaning": one.kind.meaning,
        "advice": one.kind.advice,
    }


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings worst first, then by place; the same of several side files of an object is one."""

    def place(one: Finding) -> tuple[object, ...]:
        at = -1 if one.start is None else one.start
        return _ORDER.index(one.severity), one.topic, one.partition, at, one.name, one.objects

    return tuple(sorted(set(findings), key=place))
