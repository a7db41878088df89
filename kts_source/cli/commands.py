"""The commands of `kts` that look at a tier; below them there is neither a terminal nor Spark.

What `kts topics` says of every partition, also of those whose private key is not given.

`kts report`: a tier as one page for a browser.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kts_source.auditing.report import AuditReport
from kts_source.cli.output import is_bytes, print_json, print_table, write_records, write_whole
from kts_source.cli.scan_options import json_flag, scan_options
from kts_source.engines.scan import scan
from kts_source.errors import InvalidOptionError, KeyPrefixError, StoreError, TierNotFoundError
from kts_source.layout.find_layout import find_layout
from kts_source.libraries import errors_only
from kts_source.options import parse_options
from kts_source.planning.describe import PartitionWatermark, describe
from kts_source.planning.key_prefix import likely_prefixes
from kts_source.planning.locked import locked_partition, only, partitions_with_keys, unless_locked
from kts_source.planning.planner import plan_scan
from kts_source.reporting.page import report
from kts_source.store.open_store import local_file
from kts_source.texts import format_bytes
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.segment_catalog import ListedPartition


def topic_rows(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a partition, as `TierDescription.to_arrow` names the columns, and `keys_needed`.

    A partition that cannot be described for want of a private key has the facts of its manifests
    only: offsets are null, and `keys_needed` names the key ids. Where no key prefix is given and
    only one comes into question, it is taken, and standard error says so.

    Raises:
        TieredKafkaError: As `describe`, missing keys aside.
    """
    given = parsed = replace(parse_options(options), fail_on_data_loss=False)
    while True:
        try:
            rows = _rows(parsed)
        except (TierNotFoundError, KeyPrefixError) as error:
            found = "" if given.key_prefix else _meant(parsed, error)
            if len(found) <= len(parsed.key_prefix):
                raise
            parsed = replace(parsed, key_prefix=found)
        else:
            break
    if parsed != given:
        prefix = parsed.key_prefix
        click.echo(f"found under keyPrefix {prefix!r}: give it as --keyPrefix {prefix}", err=True)
    return rows


def _meant(options: ScanOptions, error: TierNotFoundError | KeyPrefixError) -> str:
    """The only key prefix that an error may be about; empty if there is none, or more."""
    if isinstance(error, KeyPrefixError):
        return error.key_prefix
    if isinstance(error, StoreError):
        return ""
    with closing(open_tier(options)) as tier:
        layout, wanted = (
            find_layout(
                options.layout, end_of_log=options.end_of_log, paths=1 + len(options.disk_paths)
            ),
            options.selection.wanted(()),
        )
        found = likely_prefixes(tier.store, layout, options.key_prefix, wanted)
    return found[0] if len(found) == 1 else ""


def _rows(parsed: ScanOptions) -> list[dict[str, Any]]:
    if parsed.by_metadata_topic:  # what follows lists
        return _described(parsed)
    if (described := unless_locked(lambda: _described(parsed))) is not None:
        return described
    with errors_only("kts_source"):  # the first attempt has said what there is to say
        found = partitions_with_keys(parsed)
        open_ones = [part for part, keys in found if not keys]
        rows = _described(only(parsed, open_ones)) if open_ones else []
        for part, keys in found:
            if keys:
                rows += _of_locked(parsed, part, keys)
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _described(options: ScanOptions) -> list[dict[str, Any]]:
    return [{**row, "keys_needed": []} for row in describe(options).to_arrow().to_pylist()]


def _of_locked(
    options: ScanOptions, part: ListedPartition, keys: tuple[str, ...]
) -> list[dict[str, Any]]:
    # Old segments may be encrypted where nothing that describing needs is.
    described = unless_locked(lambda: _described(only(options, [part])))
    if described is not None:
        return described
    locked = locked_partition(part, keys)
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(PartitionWatermark))
    told = {name: getattr(locked, name) for name in row if hasattr(locked, name)}
    row |= told | {"orphans": list(locked.orphans), "keys_needed": list(keys)}
    return [row]


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


@click.command("report")
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="The file to write; -o FILE is the same, for a name without =.",
)
@click.option(
    "--audit",
    type=click.Path(exists=True, dir_okay=False),
    help="A JSON report of kts audit about the same tier, to be shown beside.",
)
@scan_options("path", "topic", every_topic=True, bare="output")
def report_command(options: Mapping[str, str], *, output: str | None, audit: str | None) -> None:
    """Draws the selected topics as one HTML file: segments, holes, growth, cost, lag."""
    if output is None:
        raise InvalidOptionError("give the file to write: --output report.html")
    local_file(output)  # before the work is done
    found = None if audit is None else _audit(audit)
    page = report(options, audit=found).to_html()
    write_whole(output, page)
    click.echo(f"{output}: {format_bytes(len(page.encode()))}", err=True)


def _audit(path: str) -> AuditReport:
    try:
        return AuditReport.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{path} is no report of kts audit: {error}") from None
