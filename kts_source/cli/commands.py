"""The commands of `kts` that look at a tier; below them there is neither a terminal nor Spark."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from kts_source.cli.record_lines import is_bytes, write_records
from kts_source.cli.scan_options import json_flag, scan_options
from kts_source.cli.tables import print_json, print_table
from kts_source.cli.topics import topic_rows
from kts_source.engines.scan import scan
from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.texts import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.planning.scan_plan import ScanPlan


@click.command()
@json_flag
@scan_options("path", every_topic=True)
def topics(options: Mapping[str, str], *, as_json: bool) -> None:
    """Topics and partitions of the tier with their watermarks."""
    rows = topic_rows(options)
    if as_json:
        print_json(rows)
        return
    header = ("topic", "partition", "log start", "tier end", "last stable", "segments", "bytes", "")
    names = ("topic", "partition", "log_start", "tier_end", "last_stable_offset", "segments")
    table = [
        (
            *("?" if row[name] is None else row[name] for name in names),
            format_bytes(row["stored_bytes"]),
            f"{len(row['holes'])} holes" if row["holes"] else row["reason"],
        )
        for row in rows
    ]
    print_table(header, table)


@click.command()
@json_flag
@scan_options("path", "topic", every_topic=True)
def segments(options: Mapping[str, str], *, as_json: bool) -> None:
    """Segments of the selected topics: which offsets each serves, and which are not read."""
    rows = list(_segment_rows(plan_scan(parse_options({**options, "failOnDataLoss": "false"}))))
    if as_json:
        print_json(rows)
        return
    names = ("topic", "partition", "segment", "start", "stop", "bytes", "state")
    print_table(names, [tuple(row[name] for name in names) for row in rows])


def _segment_rows(plan: ScanPlan) -> Iterator[dict[str, Any]]:
    for part in plan.partitions:
        read = [(span.segment, span.start, span.stop, "read") for span in part.surviving.ranges]
        left = [
            (s.segment, s.segment.start_offset, s.segment.stop_offset, s.reason)
            for s in part.surviving.skipped
        ]
        for segment, start, stop, state in sorted(read + left, key=lambda row: row[1]):
            yield {
                "topic": part.topic,
                "partition": part.partition,
                "topicId": part.topic_id,
                "segment": segment.segment_id,
                "start": start,
                "stop": stop,
                "bytes": segment.objects.size_in_bytes,
                "storedBytes": segment.objects.log.size,
                "compression": segment.objects.compression,
                "encrypted": segment.objects.encryption is not None,
                "maxTimestampMs": segment.max_timestamp_ms,
                "leaderEpochs": {e.epoch: e.start_offset for e in segment.leader_epochs},
                "key": segment.objects.log.key,
                "state": state,
            }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The plan for option planFile.")
@scan_options("path", "topic")
def plan(options: Mapping[str, str], *, as_json: bool) -> None:
    """What a read would fetch, leave out and cost, before it runs."""
    made = plan_scan(parse_options(options))
    click.echo(made.to_json() if as_json else made.explain())


@click.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    help="json: one object a record; raw: values only, each with a line feed.",
)
@click.option("--json", "form", flag_value="json", help="As --format json.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many records.")
@scan_options("path", "topic")
def cat(options: Mapping[str, str], *, form: str, limit: int | None) -> None:
    """Prints records."""
    if form == "raw":
        options = {**options, "columns": "value"}
    whole = scan(options)
    if form == "raw" and not is_bytes(whole.schema.field("value")):
        raise InvalidOptionError("--format raw prints bytes: leave option value.format out")
    with closing((whole if limit is None else whole.limit(limit)).batches()) as batches:
        for batch in batches:
            write_records(batch, form)
    sys.stdout.flush()


@click.command()
@json_flag
@click.option(
    "--of",
    type=click.Choice(["value", "key"]),
    default="value",
    help="Whose schema is printed; --json has both.",
)
@scan_options("path", "topic")
def schema(options: Mapping[str, str], *, as_json: bool, of: str) -> None:
    """What values are decoded to, as a DDL: of JSON without a schema, what a sample shows."""
    from segment_format.values.json.ddl import print_ddl

    found = scan({**options, "columns": "key,value"}).schema
    ddls = {field.name: print_ddl(field.type) for field in found}
    if as_json:
        print_json(ddls)
        return
    if not ddls[of].isprintable():
        raise InvalidOptionError("a field's name has a control character: --json shows it escaped")
    click.echo(ddls[of])
