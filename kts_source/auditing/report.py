"""What an audit found, and what it states of each partition, as values.

A report as a text file for Prometheus, such as for the node exporter's textfile collector.

Source: "Text-based format" of Prometheus' exposition formats.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.auditing.kinds import KINDS, Kind, Severity
from kts_source.texts import camel_case, printable, rows_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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


_HELP = {
    "kts_audit_timestamp_seconds": "When the audit began.",
    "kts_audit_findings": "Findings of a kind in a partition.",
    "kts_audit_finding_bytes": "Stored bytes of the objects of these findings.",
    "kts_audit_whole": "1 if nothing is missing and nothing is an error.",
    "kts_audit_start_offset": "First served offset.",
    "kts_audit_stop_offset": "One past the last served offset.",
    "kts_audit_stored_bytes": "Listed objects of the partition.",
    "kts_audit_records": "Records of the served offsets.",
    "kts_audit_orphan_bytes": "Stored bytes of objects that nobody needs.",
    "kts_audit_orphan_dollars_a_month": "About what these objects cost, at list prices of S3.",
}
_GAUGES = {
    "kts_audit_whole": "is_whole",
    "kts_audit_start_offset": "start",
    "kts_audit_stop_offset": "stop",
    "kts_audit_stored_bytes": "stored_bytes",
    "kts_audit_records": "records",
}


def to_prometheus(report: AuditReport) -> str:
    """The metrics of a report, one gauge a line; names from the tier are escaped."""
    samples: list[tuple[str, Mapping[str, str], float]] = [
        ("kts_audit_timestamp_seconds", {"level": report.level}, report.audited_ms / 1000)
    ]
    counts: Counter[tuple[str, int, str, str]] = Counter()
    sizes: Counter[tuple[str, int, str, str]] = Counter()
    for one in report.findings:
        place = one.topic, one.partition, one.name, one.severity.value
        counts[place] += 1
        sizes[place] += one.stored_bytes
    for name, found in (("kts_audit_findings", counts), ("kts_audit_finding_bytes", sizes)):
        for (topic, partition, kind, severity), value in sorted(found.items()):
            more = {"kind": kind, "severity": severity}
            samples.append((name, {"topic": topic, "partition": str(partition), **more}, value))
    for name, attribute in _GAUGES.items():
        for part in report.partitions:
            value_of = getattr(part, attribute)
            if value_of is not None:
                labels = {"topic": part.topic, "partition": str(part.partition)}
                samples.append((name, labels, value_of))
    # A partition without orphans has a sample, too: a gauge that is gone says nothing.
    places = {(one.topic, one.partition) for one in report.partitions}
    places |= {(one.topic, one.partition) for one in report.findings}
    of_orphans: dict[str, Callable[[Finding], float]] = {
        "kts_audit_orphan_bytes": lambda one: one.stored_bytes,
        "kts_audit_orphan_dollars_a_month": lambda one: one.dollars_a_month,
    }
    for name, part_of in of_orphans.items():
        totals = dict.fromkeys(sorted(places), 0.0)
        for one in report.findings:
            if one.kind.is_orphan:
                totals[one.topic, one.partition] += part_of(one)
        for (topic, partition), total in totals.items():
            samples.append((name, {"topic": topic, "partition": str(partition)}, total))
    return "".join(_lines(samples))


def _lines(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Iterable[str]:
    told = None
    for name, labels, value in samples:
        if name != told:
            yield f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n"
            told = name
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        number = int(value) if float(value).is_integer() else value
        yield f"{name}{{{inside}}} {number}\n"


def _escaped(text: str) -> str:
    # The format has no escape for what is not printable, and takes no invalid UTF-8.
    text = "\n".join(map(printable, text.split("\n")))
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
