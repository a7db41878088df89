"""The commands `kts topics`, `kts segments`, `kts plan` and `kts schema`. They print the contents
of a tier, and the plan of a read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import click

from kts_source.cli.flags import Command, flag
from kts_source.cli.output import camel_cased, print_json, print_table
from kts_source.cli.scan_options import PLACES, RECORDS, json_flag, scan_options
from kts_source.engines.scan import scan
from kts_source.errors import (
    InvalidOptionError,
    KeyPrefixError,
    StoreError,
    TierNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.describe import PartitionWatermark
from kts_source.planning.planner import plan_scan
from kts_source.planning.tier_hints import likely_prefixes
from kts_source.reporting.page import describe_unlocked
from kts_source.texts import format_bytes
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


def topic_rows(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns a row for each partition, with the columns of `TierDescription.to_arrow` and the
    column `keys_needed`.

    If a private key for a partition is missing, the row contains only facts from manifests: offsets
    are null, and `keys_needed` lists the ids of the missing keys. Without option `keyPrefix`, the
    key prefix is guessed; if exactly one prefix is likely, it is used and printed to stderr.

    Raises:
        TieredKafkaError: See `describe`. Missing keys raise no error.
    """
    original = parsed = replace(parse_options(options), fail_on_data_loss=False)
    while True:
        try:
            described, locked = describe_unlocked(parsed)
            break
        except (TierNotFoundError, KeyPrefixError) as error:
            prefix = "" if original.key_prefix else _likely_prefix(parsed, error)
            if len(prefix) <= len(parsed.key_prefix):
                raise
            parsed = replace(parsed, key_prefix=prefix)
    if parsed != original:
        prefix = parsed.key_prefix
        click.echo(f"found under --key-prefix {prefix}: set this flag next time", err=True)
    table = [] if described is None else described.description.to_arrow().to_pylist()
    rows: list[dict[str, Any]] = [{**row, "keys_needed": []} for row in table]
    empty = dict.fromkeys(field.name for field in fields(PartitionWatermark))
    for partition in locked:
        row = asdict(partition) | {"reason": partition.reason}
        row |= {name: list(row[name]) for name in ("orphans", "keys_needed")}
        rows.append({**empty, **row})
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _likely_prefix(options: ScanOptions, error: TierNotFoundError | KeyPrefixError) -> str:
    """Returns the key prefix with which the read probably does not raise `error`. Returns "" if no
    prefix or more than one is likely.
    """
    if isinstance(error, KeyPrefixError):
        return error.key_prefix
    if isinstance(error, StoreError):
        return ""
    paths = 1 + len(options.disk_paths)
    layout = find_layout(options.layout, end_of_log=options.end_of_log, paths=paths)
    with closing(open_tier(options)) as tier:
        wanted = options.selection.wanted(())
        prefixes = likely_prefixes(tier.store, layout, options.key_prefix, wanted)
    return prefixes[0] if len(prefixes) == 1 else ""


@click.command(
    cls=Command,
    examples=("kts topics s3://bucket --key-prefix tiered/", "kts topics ./tier --json"),
)
@json_flag
@scan_options("path", essential=(*PLACES, "subscribe"), every_topic=True)
def topics(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print topics and partitions of the tier with their watermarks."""
    rows = topic_rows(options)
    if as_json:
        print_json([camel_cased(row) for row in rows])
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


@click.command(cls=Command, examples=("kts segments s3://bucket orders --key-prefix tiered/",))
@json_flag
@scan_options("path", "topic", every_topic=True)
def segments(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print all segments and the offsets that each one serves."""
    rows = list(_segment_rows(plan_scan(parse_options({**options, "failOnDataLoss": "false"}))))
    if as_json:
        print_json(rows)
        return
    names = ("topic", "partition", "segment", "start", "stop", "bytes", "state")
    print_table(names, [tuple(row[name] for name in names) for row in rows])


def _segment_rows(plan: ScanPlan) -> Iterator[dict[str, Any]]:
    for partition in plan.partitions:
        rows = [
            (span.segment, span.start, span.stop, "read") for span in partition.surviving.ranges
        ]
        rows += [
            (s.segment, s.segment.start_offset, s.segment.stop_offset, s.reason)
            for s in partition.surviving.skipped
        ]
        for segment, start, stop, state in sorted(rows, key=lambda row: row[1]):
            yield {
                "topic": partition.topic,
                "partition": partition.partition,
                "topicId": partition.topic_id,
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


@click.command(
    cls=Command,
    examples=(
        "kts plan s3://bucket orders --key-prefix tiered/ --where \"key = 'c3'\"",
        "kts plan s3://bucket orders --key-prefix tiered/ --json > plan.json",
    ),
)
@flag("--json", "as_json", is_flag=True, help="Print the plan for --plan-file.")
@scan_options("path", "topic", essential=RECORDS)
def plan(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print what a read would fetch, skip and cost. Reads no records."""
    made = plan_scan(parse_options(options))
    click.echo(made.to_json() if as_json else made.explain())


@click.command(
    cls=Command,
    examples=("kts schema s3://bucket orders --key-prefix tiered/ --value-format json",),
)
@json_flag
@flag(
    "--of",
    type=click.Choice(["value", "key"]),
    default="value",
    help="Print the schema of values or keys. --json prints both.",
)
@scan_options("path", "topic", essential=(*PLACES, "value.format", "key.format"))
def schema(options: Mapping[str, str], *, as_json: bool, of: str) -> None:
    """Print the type of values as DDL. For JSON without a schema, infer the type from a sample."""
    from segment_format.values.json.ddl import print_ddl

    ddls = {
        field.name: print_ddl(field.type)
        for field in scan({**options, "columns": "key,value"}).schema
    }
    if as_json:
        print_json(ddls)
        return
    if not ddls[of].isprintable():
        raise InvalidOptionError(
            "a field name contains a control character: use --json, which escapes it"
        )
    click.echo(ddls[of])
