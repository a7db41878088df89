"""A report as a text file for Prometheus, such as for the node exporter's textfile collector.

Source: "Text-based format" of Prometheus' exposition formats.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kts_source.auditing.report import AuditReport, Finding

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
