"""The command `kts cat`, which prints records: all, the last ones, or new ones as they arrive."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from kts_source.cli.flags import Command, Integer, SuggestedText, flag, flag_name
from kts_source.cli.record_formats import (
    FORMATS,
    columns_of_format,
    default_format,
    record_writer,
)
from kts_source.cli.scan_options import RECORDS, scan_options
from kts_source.engines.scan import Scan
from kts_source.errors import InvalidOptionError
from kts_source.options import parse_any_options
from kts_source.options.scan_options import check_for_batch, check_for_stream
from kts_source.options.selection import Assign, OffsetsBound, TimestampBound
from kts_source.options.times import parse_time
from kts_source.planning.describe import describe
from kts_source.planning.infer_types import with_types
from kts_source.predicate.model import MIN_INT64
from kts_source.read.read_settings import read_schema
from kts_source.read.read_task import run_task
from kts_source.texts import time_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    import pyarrow as pa

    from kts_source.cli.record_formats import RecordWriter
    from kts_source.options import ScanOptions
    from kts_source.options.selection import Bound

_POLL_SECONDS: Final = 1.0
_GROWTH: Final = 8
"""Factor by which `--tail` enlarges the range of offsets that it reads."""
_MIN_EPOCH_MS: Final = 10**11
"""Smaller numbers are probably in seconds."""
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


@click.command(
    cls=Command,
    examples=(
        "kts cat s3://bucket orders --key-prefix tiered/ --tail 10",
        "kts cat ./tier orders -p 0 --since 2h --format '%o %k %v\\n'",
        "kts cat ./tier orders -b broker:9092 --follow",
    ),
)
@flag(
    "-p",
    "--partition",
    "partitions",
    type=Integer(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition. Repeatable.",
)
@flag("--limit", type=Integer(min=0), metavar="N", help="Print at most N records.")
@flag(
    "--tail",
    type=Integer(min=0),
    metavar="N",
    help="Print the last N records by timestamp.",
)
@flag("--since", metavar="TIME", help="Print records from this time on: 90s, 1h, 2d, 2026-02-25.")
@flag("-f", "--follow", is_flag=True, help="Continue with new records until Ctrl-C.")
@flag(
    "--format",
    "form",
    type=SuggestedText(lambda: FORMATS),
    metavar="[json|csv|table|raw|TEXT]",
    help="Text has tokens as in kcat: '%t %p %o %k %v\\n'.  [default: table on a terminal,"
    " otherwise json]",
)
@flag("--json", "as_json", is_flag=True, help="One JSON object per line.")
@flag("--csv", "as_csv", is_flag=True, help="CSV with a header.")
@scan_options("path", "topic", essential=RECORDS, by_option_only=("tail",))
def cat(
    options: dict[str, str],
    *,
    partitions: tuple[int, ...],
    limit: int | None,
    tail: int | None,
    since: str | None,
    follow: bool,
    form: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Print records in order of topic, partition and offset."""
    form = _form(form, as_json=as_json, as_csv=as_csv)
    if (columns := columns_of_format(form)) is not None:
        if "columns" in options:
            raise InvalidOptionError("--format and --columns both select columns: remove one")
        options["columns"] = ",".join(columns)
        if "headers" in columns:
            options["includeHeaders"] = "true"
    if partitions:
        _assign(options, partitions)
    if since is not None:
        _start_at(options, since)
    if tail is not None and limit is not None:
        raise InvalidOptionError("--tail and --limit both limit the records: remove one")
    parsed = _parsed(options, is_stream=follow)
    writer = record_writer(form, read_schema(parsed.columns, parsed.formats))
    start, printed = parsed.starting, 0
    if tail is not None:
        table, ends = _last(parsed, tail)
        parsed = replace(parsed, starting=ends)
        printed = _print(writer, table.to_batches())
    elif not follow:
        rows = Scan(parsed)
        with closing((rows if limit is None else rows.limit(limit)).batches()) as batches:
            printed = _print(writer, batches)
    if since is not None and not (printed or follow or tail == 0 or limit == 0):
        _explain_no_records(parsed, start)
    if follow:
        with contextlib.suppress(KeyboardInterrupt), closing(_new(parsed, limit)) as batches:
            _print(writer, batches)


def _form(form: str | None, *, as_json: bool, as_csv: bool) -> str:
    """Returns the format that the flags set, or the default format."""
    chosen = {"--format": form, "--json": as_json, "--csv": as_csv}
    names = [name for name, value in chosen.items() if value]
    if len(names) > 1:
        raise InvalidOptionError(f"{' and '.join(names)} each set the format: keep one")
    if as_json or as_csv:
        return "json" if as_json else "csv"
    return form or default_format()


def _parsed(options: dict[str, str], *, is_stream: bool) -> ScanOptions:
    parsed = parse_any_options(options)
    if is_stream:
        check_for_stream(parsed)
    else:
        check_for_batch(parsed)
    return replace(with_types(parsed), key_ring=parsed.key_ring.loaded())


def _print(writer: RecordWriter, batches: Iterable[pa.RecordBatch]) -> int:
    """Prints batches and returns the number of their rows."""
    rows = 0
    for batch in batches:
        writer.write(batch)
        sys.stdout.flush()
        rows += batch.num_rows
    return rows


def _explain_no_records(options: ScanOptions, start: Bound) -> None:
    """Prints that a read from `start` has no records. If `start` is a time after the newest record,
    also prints the time of the newest record.
    """
    marks = describe(options).partitions
    newest_ms = max((mark.tier_end_timestamp_ms for mark in marks), default=-1)
    if isinstance(start, TimestampBound) and 0 <= newest_ms < start.timestamp_ms:
        since, newest = (time_text(1000 * ms, "seconds") for ms in (start.timestamp_ms, newest_ms))
        click.echo(f"no records since {since}: the newest record is from {newest}", err=True)
    else:
        click.echo("no records", err=True)


def _new(options: ScanOptions, limit: int | None) -> Generator[pa.RecordBatch]:
    """Yields existing records and then new records, without end."""
    from kts_source.streaming.offsets import INITIAL
    from kts_source.streaming.tier_stream import TierStream

    position = INITIAL
    left = sys.maxsize if limit is None else limit
    with closing(TierStream(options)) as stream:
        while left:
            end = stream.next(position)
            if end is position:
                time.sleep(_POLL_SECONDS)
                continue
            plan = stream.plan(position, end)
            for task in () if plan is None else plan.tasks:
                with closing(run_task(task, options)) as batches:
                    for batch in batches:
                        yield batch.slice(0, left)
                        left = max(0, left - batch.num_rows)
                        if not left:
                            return
            position = end


_ORDER: Final = ("timestamp", "topic", "partition", "offset")


def _last(options: ScanOptions, count: int) -> tuple[pa.Table, OffsetsBound]:
    """Reads the last `count` records by timestamp. Returns the records, and the end of each
    partition.

    Because of compaction, transactions or a condition, many offsets may have no row. So the range
    of offsets that is read before the end of each partition grows until it has enough rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    plan = Scan(options).plan
    ranges = {(each.topic, each.partition): (each.start, each.stop) for each in plan.partitions}
    more = tuple(name for name in _ORDER if name not in options.columns)
    columns = (*options.columns, *more)
    ends = OffsetsBound(_by_topic({key: stop for key, (_, stop) in ranges.items()}))
    found = [read_schema(columns, options.formats).empty_table()]
    pending = {key: span for key, span in ranges.items() if count and span[0] < span[1]}
    size = count
    while pending:
        starts = {key: max(start, stop - size) for key, (start, stop) in pending.items()}
        part = replace(
            options,
            selection=Assign(
                {topic: tuple(numbers) for topic, numbers in _by_topic(starts).items()}
            ),
            starting=OffsetsBound(_by_topic(starts)),
            ending=OffsetsBound(_by_topic({key: ranges[key][1] for key in starts})),
            columns=columns,
        )
        table = Scan(part).to_table()
        for key, start in starts.items():
            rows = table.filter((pc.field("topic") == key[0]) & (pc.field("partition") == key[1]))
            if rows.num_rows >= count or start == ranges[key][0]:
                found.append(rows.slice(max(0, rows.num_rows - count)))
                del pending[key]
        size *= _GROWTH
    everything = pa.concat_tables(found)
    # Records without a timestamp count as the oldest.
    stamps = pc.fill_null(everything["timestamp"].cast(pa.int64()), MIN_INT64)
    number = everything.schema.get_field_index("timestamp")
    dated = everything.set_column(number, "timestamp", stamps)
    order = pc.sort_indices(dated, [(name, "ascending") for name in _ORDER])
    last = everything.take(order[max(0, len(order) - count) :])
    return last.drop_columns(list(more)), ends


def _by_topic(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    grouped: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        grouped.setdefault(topic, {})[partition] = offset
    return grouped


def _assign(options: dict[str, str], partitions: tuple[int, ...]) -> None:
    """Sets option `assign` to partitions of the topics in option `subscribe`."""
    topics = [name.strip() for name in options.pop("subscribe", "").split(",") if name.strip()]
    if not topics:
        raise InvalidOptionError("--partition needs a topic: set TOPIC or --subscribe")
    options["assign"] = json.dumps(dict.fromkeys(topics, sorted(set(partitions))))


def _start_at(options: dict[str, str], since: str) -> None:
    if given := [name for name in _STARTS if name in options]:
        raise InvalidOptionError(
            f"--since and {flag_name(given[0])} both set the start: remove one"
        )
    if re.fullmatch(r"\d{1,9}", since):
        raise InvalidOptionError(
            f"--since {since} has no unit: write {since}s, {since}m, {since}h or {since}d"
        )
    if re.fullmatch(r"\d+", since) and int(since) < _MIN_EPOCH_MS:
        raise InvalidOptionError(
            f"--since must be in ms since 1970, but {since} ms is before March 1973. If it is in"
            f" seconds, write {since}000"
        )
    text = f"-{since}" if re.fullmatch(r"\d+ *[a-z]+", since) else since
    try:
        parse_time("since", text)
    except InvalidOptionError:
        raise InvalidOptionError(
            "--since must be a duration such as 90s or 1h, a date or timestamp such as 2026-02-25"
            f" or 2026-02-25T10:00Z, or ms since 1970, not {since!r}"
        ) from None
    options["startingTimestamp"] = text
    # Without a record since then, print nothing.
    options.setdefault("startingOffsetsByTimestampStrategy", "latest")
