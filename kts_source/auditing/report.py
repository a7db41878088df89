"""The report of an audit: kinds of findings, findings, and a statement about each partition.

Reports are written as JSON, as HTML for notebooks, and as metrics in the text format of Prometheus.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Self

from kts_source.texts import Displayed, Table, camel_case, json_fields, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

LISTING: Final = "listing"
METADATA: Final = "metadata"
INDEXES: Final = "indexes"
BYTES: Final = "bytes"
LEVELS: Final = (LISTING, METADATA, INDEXES, BYTES)
"""Audit levels, from the cheapest to the most thorough. Each includes the levels before it."""


class Severity(StrEnum):
    """Severity of a finding.

    `ERROR`: readers fail or return wrong rows, or offsets are lost. `WARNING`: the problem costs
    money, or may become an error. `INFO`: normal in a tier that is in use.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding, for example `hole`.

    Attributes:
        name: Name in reports and metrics.
        severity: Severity of all findings of this kind.
        level: The lowest audit level that finds such problems. All higher levels find them, too.
        meaning: The problem and its consequence.
        advice: The action to take.
    """

    name: str
    severity: Severity
    level: str
    meaning: str
    advice: str

    @property
    def loses_data(self) -> bool:
        """True if a finding of this kind reports offsets that the tier should have but lacks."""
        return self.name in ("object-missing", "hole", "named-not-there")

    @property
    def is_orphan(self) -> bool:
        """True if findings of this kind are about objects that cost money although neither brokers
        nor readers use them.
        """
        return self.name in _ORPHANS

    @property
    def allows_delete(self) -> bool:
        """True if the operator may delete the objects in findings of this kind."""
        return self.is_orphan or self.name in _DELETABLE


_ORPHANS: Final = {
    *("half-copy", "half-delete", "stray-object", "other-topic-id", "unknown-to-brokers"),
}
_DELETABLE: Final = {"below-log-start", "copy-not-finished", "dead-branch", "duplicate-upload"}
_RESTORE: Final = (
    "Restore the object from a replica or from an older version in the bucket. Until then, set"
    " fallbackPath or read around its offsets."
)
_NO_COPY: Final = "no topic that was restored with zero copy uses them"
_DELETE: Final = (
    "Look the segment up in the metadata topic (catalog=metadata-topic). Delete the objects if"
    f" brokers do not know the segment, and {_NO_COPY}."
)
_FAILING_DELETES: Final = "Look for failed deletes in the log of the partition's leader."

_TABLE: Final[dict[tuple[str, Severity], dict[str, str | tuple[str, str]]]] = {
    (LISTING, Severity.ERROR): {
        "object-missing": (
            "Objects of a segment are missing, and no other segment is known to hold its offsets."
        ),
        "empty-object": (
            "An object of a segment has 0 bytes: it was truncated, or its upload failed."
        ),
        "archived": (
            "Objects are in an archive storage class. They must be restored before they can be"
            " read.",
            "Restore them in the store, or move them to another storage class.",
        ),
        "named-not-there": (
            "Brokers list a segment as copied, but the tier does not have all of its objects."
            " Consumers of its offsets fail."
        ),
    },
    (LISTING, Severity.WARNING): {
        "half-copy": (
            "Objects of a segment exist without its manifest, because a copy did not finish. They"
            " are never read and cost money.",
            _DELETE,
        ),
        "half-delete": (
            "A segment lacks some objects, and other segments hold its offsets or retention"
            " deleted them. A delete did not finish.",
            _DELETE,
        ),
        "stray-object": (
            "The name of an object is not one of a segment's.",
            "Find out who wrote it. Brokers never delete it.",
        ),
        "other-topic-id": (
            "Objects belong to an older topic of the same name, which was deleted and created"
            " again.",
            f"Delete them if the cluster does not know the topic id, and {_NO_COPY}. To read them,"
            " set topicId.",
        ),
        "duplicate-upload": (
            "A segment was uploaded more than once. Readers use one of the copies.",
            _DELETE,
        ),
        "unknown-to-brokers": (
            "The metadata topic does not list the segment, so brokers neither read nor delete it.",
            f"Delete the objects if no other cluster writes to the same path, and {_NO_COPY}.",
        ),
        "copy-not-finished": (
            "All objects of a segment exist, but brokers did not finish the copy and copied its"
            " offsets again.",
            "Wait for brokers to delete it. If they do not, delete its objects once another segment"
            f" holds its offsets, and if {_NO_COPY}.",
        ),
        "delete-not-finished": (
            "Brokers began to delete a segment, and its objects still exist.",
            _FAILING_DELETES,
        ),
        "retention-overdue": (
            "Retention should have deleted these segments before the grace period.",
            _FAILING_DELETES,
        ),
        "metadata-incomplete": (
            "The metadata topic lost records, so segments unknown to brokers cannot be detected.",
            "Configure cleanup.policy and retention of __remote_log_metadata so that it keeps all"
            " records.",
        ),
    },
    (LISTING, Severity.INFO): {
        "copy-under-way": (
            "Objects of a segment exist without its manifest and are younger than the grace"
            " period: a broker is copying the segment.",
            "Nothing, unless they still have no manifest after the grace period.",
        ),
        "retention-unknown": (
            "Brokers do not return the topic's configuration, so overdue retention cannot be"
            " detected.",
            "Grant the user the ACL DescribeConfigs on the topic.",
        ),
    },
    (METADATA, Severity.ERROR): {
        "object-gone": (
            "An object was deleted or replaced while the audit ran.",
            "Run the audit again. Retention may have deleted the object.",
        ),
        "manifest-invalid": (
            "A manifest is unreadable or contradicts itself, so its segment cannot be read."
        ),
        "manifest-foreign": (
            "A manifest describes another segment than its name: objects were swapped or copied"
            " wrongly."
        ),
        "log-size": (
            "The size of a log object is not the sum of the chunks in its manifest: it was"
            " truncated, or belongs to another segment."
        ),
        "indexes-size": (
            "The size of an object of side files differs from its manifest: it was truncated, or"
            " belongs to another segment."
        ),
        "key-missing": (
            "Segments are encrypted with a key that the key ring lacks or that does not decrypt"
            " them. None of their contents were checked.",
            "Set the private key: option encryption.key.pairs.<id>.private.key.file.",
        ),
        "epochs-invalid": "A leader-epoch checkpoint is invalid, or its epochs are out of order.",
        "epochs-disagree": (
            "A leader-epoch checkpoint assigns other epochs to the segment's offsets than the"
            " manifest does: it belongs to another segment."
        ),
        "lineage-disagrees": (
            "The newest leader-epoch checkpoint contradicts other segments or the leader's log"
            " start, so it is unclear which segments belong to the log. Reads that would skip"
            " segments fail; reads with a log start that is too high only warn.",
            "Restore the damaged side file from a replica or from an older version in the bucket."
            " Until then, delete no segment of the partition.",
        ),
        "snapshot-invalid": (
            "A producer snapshot is missing or invalid. Readers replay batch headers instead."
        ),
        "snapshot-disagrees": (
            "A producer snapshot lists other open transactions than the segments around it, or"
            " offsets after the end of its segment. read_committed may end at the wrong offset."
        ),
        "transactions-invalid": (
            "A transaction index is invalid. Readers replay batch headers instead."
        ),
        "transactions-disagree": (
            "A transaction index lists an aborted transaction without an abort marker in the"
            " segment. read_committed skips committed records."
        ),
        "hole": (
            "No segment holds some offsets between the log start and the end of the tier.",
            "Restore the objects from a replica or from older versions in the bucket; the metadata"
            " topic shows who deleted them. Set failOnDataLoss=false to read the other offsets; an"
            " export then never adds the missing ones.",
        ),
        "unsure-gap": (
            "No segment holds some offsets, and the layout does not record where the segment before"
            " them ends. Reads fail. No record is missing if compaction removed the last records of"
            " that segment.",
            "Set catalog=metadata-topic, which records where segments end. Without brokers, set"
            " failOnDataLoss=false to skip the gap with a warning.",
        ),
    },
    (METADATA, Severity.WARNING): {
        "clock": (
            "A timestamp is impossible: a copy in the future or before 1970, or a record dated more"
            " than a day after its copy. Retention by time uses these timestamps.",
            "Check the clocks of brokers and producers. message.timestamp.after.max.ms limits"
            " timestamps of producers.",
        ),
        "dead-branch": (
            "A segment, or its end, was written by a leader that lost an unclean election. Its"
            " records are not in the topic.",
            "Keep it only if you want the lost records. Brokers delete it late.",
        ),
        "below-log-start": (
            "A segment still exists below the log start, although retention or DeleteRecords"
            " dropped it.",
            _DELETE,
        ),
        "log-start-unconfirmed": (
            "Offsets in the tier are skipped because the log starts above them, according to the"
            " newest leader-epoch checkpoint alone. After DeleteRecords this is normal until the"
            " next segment is copied. A damaged checkpoint looks the same.",
            "Run the audit with kafka.bootstrap.servers to compare with the leader's log start."
            " Until then, delete no segment of the partition.",
        ),
        "hanging-transaction": (
            "A transaction is still open a day after it began. read_committed does not advance.",
            "Find and abort it: kafka-transactions.sh find-hanging, then abort.",
        ),
    },
    (METADATA, Severity.INFO): {
        "overlap": (
            "Other segments hold the offsets of a segment, because a new leader rolled segments at"
            " other offsets.",
            "Nothing. Retention deletes it with the others.",
        ),
        "open-transaction": (
            "The end marker of a transaction is not in the tier yet. read_committed ends where the"
            " transaction begins.",
            "Nothing. The next segments contain the marker.",
        ),
    },
    (INDEXES, Severity.ERROR): {
        "offset-index-invalid": (
            "An offset index is invalid or points outside its segment. Readers read the whole"
            " segment."
        ),
        "offset-index-disagrees": (
            "An entry of an offset index does not point to the start of its batch."
        ),
        "time-index-invalid": (
            "A time index is invalid, out of order, or points outside its segment. Readers ignore"
            " it and read the segment from its start."
        ),
        "time-index-disagrees": (
            "An entry of a time index matches no batch, or the last entry is not the segment's"
            " largest timestamp. Readers check an entry against the log before they use it."
        ),
    },
    (BYTES, Severity.ERROR): {
        "log-unreadable": (
            "Chunks cannot be decrypted or decompressed, or have another size than in the manifest."
        ),
        "crc": "A batch does not match its checksum.",
        "batch-invalid": (
            "Bytes are not a record batch, or a batch is truncated. The rest of the segment was not"
            " checked."
        ),
        "offset-order": "The offsets of a batch do not follow those of the batch before it.",
        "out-of-bounds": (
            "Batches are outside the offsets of the segment: the log belongs to another segment."
        ),
        "epoch": (
            "A batch has another leader epoch than the one that owns its offset: it is from a dead"
            " branch."
        ),
        "aborted-not-indexed": (
            "The transaction index lacks a transaction whose abort marker is in the segment."
            " read_committed returns aborted records."
        ),
    },
}


def _kinds() -> Iterator[Kind]:
    for (level, severity), kinds in _TABLE.items():
        for name, texts in kinds.items():
            meaning, advice = (texts, _RESTORE) if isinstance(texts, str) else texts
            yield Kind(name, severity, level, meaning, advice)


KINDS: Final = {kind.name: kind for kind in _kinds()}
"""All kinds of findings by name."""

REPORT_VERSION: Final = 1
_ORDER: Final = tuple(Severity)
_JSON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "str | None": (str, NoneType),
    "int | None": (int, NoneType),
    "tuple[str, ...]": (list,),
}


class _JsonValue:
    """Base of dataclasses that are written to JSON and restored from it with type checks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as values of JSON, with names in camel case."""
        document: dict[str, Any] = json_fields(self)
        return document

    @classmethod
    def from_dict(cls, document: Any) -> Self:  # noqa: ANN401  # of JSON
        """Restores an object from the result of `to_dict`. Raises `KeyError` if an attribute is
        missing, and `TypeError` if an attribute has a wrong type.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = document[camel_case(field.name)]
            if type(value) not in _JSON_TYPES[str(field.type)]:
                raise TypeError(f"{field.name} is a {type(value).__name__}")
            if isinstance(value, list) and not all(type(item) is str for item in value):
                raise TypeError(f"{field.name} has items that are not strings")
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Finding(_JsonValue):
    """A problem at one location.

    Attributes:
        name: Name of the kind of the finding, a key of `KINDS`.
        topic_id: Id of the topic, as in object names.
        start: First affected offset, inclusive; `None` if unknown.
        stop: End of the affected offsets, exclusive; `None` if unknown.
        objects: Keys of the affected objects, relative to the root of the store.
        stored_bytes: Size of these objects in the store, as listed.
        detail: Description of the problem.
        dollars_a_month: Approximate cost of keeping these objects, at list prices of S3.
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
        """The kind of the finding, with severity, meaning and advice."""
        return KINDS[self.name]

    @property
    def severity(self) -> Severity:
        """Severity of the kind of the finding."""
        return self.kind.severity

    @property
    def location(self) -> str:
        """Topic, partition and offsets as text for messages."""
        if self.start is None:
            return f"{self.topic}-{self.partition}"
        stop = "…" if self.stop is None else self.stop
        return f"{self.topic}-{self.partition}, offsets [{self.start}, {stop})"


@dataclass(frozen=True, slots=True)
class PartitionStatement(_JsonValue):
    """States which offsets of a partition readers get from the tier, and which checks prove it.

    Attributes:
        topic_id: Id of the topic that readers use.
        start: First offset that readers get, inclusive. `start`, `stop` and `last_stable_offset`
            are `None` at level `listing`, which does not determine them.
        stop: End of the offsets that readers get, exclusive.
        last_stable_offset: End of the offsets for `read_committed`, exclusive; also `None` if side
            files are damaged.
        segments: Number of complete segments, including those that readers do not get.
        stored_bytes: Size of all listed objects of the partition.
        is_whole: True if the audit found no error in the partition. A missing offset in [start,
            stop) is an error.
        records: Number of records that readers get, without transaction markers. `records`,
            `batches` and `digest` are `None` unless the level is `bytes` and all batches in [start,
            stop) were read and are valid.
        batches: Number of batches that readers get, including transaction markers.
        digest: Sum of SHA-256 hashes over base offsets and checksums of the batches that readers
            get, as 64 hex digits; see `kts_source.auditing.proof`. It does not depend on chunks,
            encryption, compression or segment borders.
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

    def to_row(self) -> tuple[object, ...]:
        """Returns one row for a table: start, stop, last stable offset, number of segments, number
        of records, and a verdict in words.
        """
        return (
            *("?" if end is None else end for end in (self.start, self.stop)),
            "?" if self.last_stable_offset is None else self.last_stable_offset,
            self.segments,
            "" if self.records is None else self.records,
            "whole" if self.is_whole else "NOT WHOLE",
        )


@dataclass(frozen=True, slots=True, repr=False)
class AuditReport(Displayed):
    """The result of an audit.

    Attributes:
        audited_ms: Time when the audit began, in ms since 1970.
        path: Root of the tier, without credentials.
        findings: Findings, sorted by severity (worst first), topic, partition and offset.
        partitions: Statements about all partitions, sorted by topic and partition.
    """

    level: str
    audited_ms: int
    path: str
    findings: tuple[Finding, ...]
    partitions: tuple[PartitionStatement, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 3 if offsets that the tier should have are missing, 1 if there
        are only other errors, 0 if there is no error.
        """
        if any(finding.kind.loses_data for finding in self.errors):
            return 3
        return 1 if self.errors else 0

    @property
    def orphan_bytes(self) -> int:
        """Stored bytes of the objects that neither brokers nor readers use."""
        return sum(finding.stored_bytes for finding in self.findings if finding.kind.is_orphan)

    @property
    def orphan_dollars_a_month(self) -> float:
        """Approximate monthly cost of the objects in `orphan_bytes`, in US dollars."""
        return sum(
            (finding.dollars_a_month for finding in self.findings if finding.kind.is_orphan), 0.0
        )

    @property
    def records(self) -> int | None:
        """Number of records of all partitions; `None` if the number is unknown for a partition."""
        counts = [partition.records for partition in self.partitions]
        return None if None in counts else sum(count for count in counts if count is not None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values. The documentation page about audits has the schema."""
        return {
            "version": REPORT_VERSION,
            "level": self.level,
            "auditedMs": self.audited_ms,
            "path": self.path,
            "exitCode": self.exit_code,
            "records": self.records,
            "orphanBytes": self.orphan_bytes,
            "orphanDollarsAMonth": round(self.orphan_dollars_a_month, 6),
            "findings": [_with_texts(finding) for finding in self.findings],
            "partitions": [partition.to_dict() for partition in self.partitions],
        }

    def to_json(self) -> str:
        """Returns the report as JSON text. It is pure ASCII, because terminals interpret control
        characters.
        """
        return json.dumps(self.to_dict(), indent=1)

    def _tables(self) -> tuple[Table, ...]:
        title = (
            f"Audit at level {self.level}: {len(self.errors):,} errors,"
            f" {len(self.findings):,} findings in {self.path}"
        )
        header = ("severity", "finding", "partition", "from offset", "what is wrong", "to do")
        findings = [
            (
                finding.severity.value,
                finding.name,
                f"{finding.topic}-{finding.partition}",
                "" if finding.start is None else finding.start,
                finding.detail,
                finding.kind.advice,
            )
            for finding in self.findings
        ]
        columns = ("partition", "start", "stop", "last stable", "segments", "records", "")
        rows = [
            (f"{partition.topic}-{partition.partition}", *partition.to_row())
            for partition in self.partitions
        ]
        served = Table("Served offsets", columns, rows)
        return (Table(title, header if findings else (), findings), served)

    @classmethod
    def from_json(cls, text: str) -> AuditReport:
        """Restores a report from a result of `to_json`.

        Raises:
            ValueError: The text is not a report, or has another version.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("version") != REPORT_VERSION:
            raise ValueError(f"the text is not an audit report of version {REPORT_VERSION}")
        try:
            findings = tuple(_without_texts(finding) for finding in document["findings"])
            partitions = tuple(PartitionStatement.from_dict(p) for p in document["partitions"])
            level, audited_ms, path = (document[name] for name in ("level", "auditedMs", "path"))
            if type(level) is not str or type(audited_ms) is not int or type(path) is not str:
                raise TypeError("level, auditedMs or path has a wrong type")
        except (KeyError, TypeError) as error:
            raise ValueError(f"the audit report is malformed: {error}") from None
        return cls(level, audited_ms, path, findings, partitions)


def _with_texts(finding: Finding) -> dict[str, Any]:
    document = finding.to_dict()
    kind = finding.kind
    texts = {"meaning": kind.meaning, "advice": kind.advice}
    return {"kind": document.pop("name"), "severity": kind.severity.value, **document, **texts}


def _without_texts(document: Any) -> Finding:  # noqa: ANN401  # of JSON
    finding = Finding.from_dict({**document, "name": document["kind"]})
    if finding.name not in KINDS:
        raise TypeError(f"unknown kind of finding {finding.name!r}")
    return finding


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorts findings by severity (worst first) and location, and drops duplicates."""

    def order(finding: Finding) -> tuple[object, ...]:
        start = -1 if finding.start is None else finding.start
        return (
            _ORDER.index(finding.severity),
            finding.topic,
            finding.partition,
            start,
            finding.name,
            finding.objects,
        )

    return tuple(sorted(set(findings), key=order))


_HELP = {
    "kts_audit_timestamp_seconds": "When the audit began.",
    "kts_audit_findings": "Findings of a kind in a partition.",
    "kts_audit_finding_bytes": "Stored bytes of the objects of these findings.",
    "kts_audit_whole": "1 if no offset is missing and there is no error.",
    "kts_audit_start_offset": "First served offset.",
    "kts_audit_stop_offset": "End of the served offsets, exclusive.",
    "kts_audit_stored_bytes": "Stored bytes of all listed objects of the partition.",
    "kts_audit_records": "Records with served offsets.",
    "kts_audit_orphan_bytes": "Stored bytes of objects that neither brokers nor readers use.",
    "kts_audit_orphan_dollars_a_month": "Monthly cost of these objects at list prices of S3.",
}
_GAUGES: Final[Mapping[str, tuple[str, Callable[[list[float]], float]]]] = {
    "kts_audit_whole": ("is_whole", min),
    "kts_audit_start_offset": ("start", min),
    "kts_audit_stop_offset": ("stop", max),
    "kts_audit_stored_bytes": ("stored_bytes", sum),
    "kts_audit_records": ("records", sum),
}
"""Attribute of a statement for each metric, and how the values of several topic ids are combined: a
metric has one sample per partition, because Prometheus refuses equal labels.
"""


def to_prometheus(report: AuditReport) -> str:
    """Returns the metrics of a report in the text format of Prometheus. Each metric has two comment
    lines (`HELP`, `TYPE`) and one line per sample.
    """
    samples = [
        ("kts_audit_timestamp_seconds", {"level": report.level}, report.audited_ms / 1000),
        *_finding_samples(report.findings),
    ]
    for name, (attribute, combined) in _GAUGES.items():
        values: dict[tuple[str, int], list[float]] = {}
        for partition in report.partitions:
            value = getattr(partition, attribute)
            if value is not None:
                values.setdefault((partition.topic, partition.partition), []).append(value)
        samples += [(name, _labels(*key), combined(each)) for key, each in values.items()]
    samples += _orphan_samples(report)
    return "".join(_lines(samples))


def _labels(topic: str, partition: int) -> dict[str, str]:
    return {"topic": topic, "partition": str(partition)}


_Sample = tuple[str, dict[str, str], float]


def _finding_samples(findings: Iterable[Finding]) -> Iterator[_Sample]:
    counts: Counter[tuple[str, int, str, str]] = Counter()
    sizes: Counter[tuple[str, int, str, str]] = Counter()
    for finding in findings:
        key = finding.topic, finding.partition, finding.name, finding.severity.value
        counts[key] += 1
        sizes[key] += finding.stored_bytes
    for metric, values in (("kts_audit_findings", counts), ("kts_audit_finding_bytes", sizes)):
        for (topic, partition, kind, severity), value in sorted(values.items()):
            labels = _labels(topic, partition) | {"kind": kind, "severity": severity}
            yield metric, labels, value


def _orphan_samples(report: AuditReport) -> Iterator[_Sample]:
    """Yields the bytes and the cost of orphans for every partition. A partition without orphans
    gets 0, because a missing gauge could also mean that the audit did not run.
    """
    keys = {(statement.topic, statement.partition) for statement in report.partitions}
    keys |= {(finding.topic, finding.partition) for finding in report.findings}
    for name in ("stored_bytes", "dollars_a_month"):
        totals = dict.fromkeys(sorted(keys), 0.0)
        for finding in report.findings:
            if finding.kind.is_orphan:
                totals[finding.topic, finding.partition] += getattr(finding, name)
        metric = f"kts_audit_orphan_{name.removeprefix('stored_')}"
        for (topic, partition), total in totals.items():
            yield metric, _labels(topic, partition), total


def _lines(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Iterator[str]:
    previous = None
    for name, labels, value in samples:
        if name != previous:
            yield f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n"
            previous = name
        pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        number = int(value) if float(value).is_integer() else value
        yield f"{name}{{{pairs}}} {number}\n"


def _escape(text: str) -> str:
    # Prometheus' format cannot escape unprintable characters and does not allow invalid UTF-8.
    text = "\n".join(map(printable, text.split("\n")))
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
