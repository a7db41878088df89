"""`kts`: inspect, plan, read, audit, search and export a tier, without Spark.

The arguments PATH and TOPIC set the options `--path` and `--subscribe`. Options of the data source
keep their names (`--keyPrefix`, `--subscribe`, …). Options with a prefix (`s3.…`, `kafka.…`) are
set with `-o name=value`. `--json` prints one JSON document instead of a table.

The exit code is 0 for success, 1 if the tier, its data or the target is corrupt, missing or
unreachable, 2 if the command or an option is invalid, 3 if offsets that the tier should have are
missing, and 130 if the command was interrupted.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kts_source.auditing.report import BYTES, LEVELS, METADATA, AuditReport, to_prometheus
from kts_source.auditing.run import DEFAULT_GRACE_MS, audit
from kts_source.cli.demo import demo
from kts_source.cli.find_command import find_command, index_command
from kts_source.cli.output import (
    echo_printable,
    is_bytes,
    print_json,
    print_table,
    progress_bar,
    write_atomically,
    write_records,
)
from kts_source.cli.restore_command import restore_command
from kts_source.cli.scan_options import add_location, json_flag, scan_options
from kts_source.engines.scan import scan
from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    KeyPrefixError,
    StoreError,
    TieredKafkaError,
    TierNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.libraries import require
from kts_source.options import parse_options
from kts_source.planning.describe import PartitionWatermark
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import likely_prefixes
from kts_source.reporting.page import describe_unlocked, report
from kts_source.store.open_store import local_file
from kts_source.texts import format_bytes, printable, some
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


_MS_PER_MINUTE = 60_000


def topic_rows(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns a row for each partition. It has the columns of `TierDescription.to_arrow` and the
    column `keys_needed`.

    If a private key for a partition is missing, the row of the partition contains only facts from
    manifests: offsets are null, and `keys_needed` lists the ids of the missing keys. If the options
    have no key prefix, but exactly one key prefix is likely, uses this prefix and prints it to
    standard error.

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
        click.echo(f"found under keyPrefix {prefix!r}: give it as --keyPrefix {prefix}", err=True)
    table = [] if described is None else described.description.to_arrow().to_pylist()
    rows: list[dict[str, Any]] = [{**row, "keys_needed": []} for row in table]
    empty = dict.fromkeys(field.name for field in fields(PartitionWatermark))
    for partition in locked:
        row = asdict(partition) | {"reason": partition.reason}
        row |= {name: list(row[name]) for name in ("orphans", "keys_needed")}
        rows.append({**empty, **row})
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _likely_prefix(options: ScanOptions, error: TierNotFoundError | KeyPrefixError) -> str:
    """Returns the key prefix with which `error` probably does not occur. Returns "" if no prefix or
    more than one prefix is likely.
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


@click.command()
@json_flag
@scan_options("path", every_topic=True)
def topics(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print topics and partitions of the tier with their watermarks."""
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
    """Print all segments: the offsets that are read from each segment, or why it is not read."""
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


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the plan for option planFile.")
@scan_options("path", "topic")
def plan(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print what a read would fetch, skip and cost. Reads no records."""
    made = plan_scan(parse_options(options))
    click.echo(made.to_json() if as_json else made.explain())


@click.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    help="json: an object per record. raw: values only, each followed by a line feed.",
)
@click.option("--json", "form", flag_value="json", help="Same as --format json.")
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of records.")
@scan_options("path", "topic")
def cat(options: Mapping[str, str], *, form: str, limit: int | None) -> None:
    """Print records."""
    if form == "raw":
        options = {**options, "columns": "value"}
    rows = scan(options)
    if form == "raw" and not is_bytes(rows.schema.field("value")):
        raise InvalidOptionError("--format raw needs values as bytes: remove option value.format")
    with closing((rows if limit is None else rows.limit(limit)).batches()) as batches:
        for batch in batches:
            write_records(batch, form)
    sys.stdout.flush()


@click.command()
@json_flag
@click.option(
    "--of",
    type=click.Choice(["value", "key"]),
    default="value",
    help="Print the schema of values or keys. --json prints both.",
)
@scan_options("path", "topic")
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


def _audit_command(name: str, default_level: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.option(
        "--level",
        type=click.Choice(LEVELS),
        default=default_level,
        show_default=True,
        help="How thorough the audit is. Each level includes those before it.",
    )
    @click.option(
        "--grace-minutes",
        type=click.IntRange(min=0),
        default=DEFAULT_GRACE_MS // _MS_PER_MINUTE,
        show_default=True,
        help="Younger objects of an unfinished copy count as a running copy.",
    )
    @click.option("--report", type=click.Path(dir_okay=False), help="Write the report as JSON.")
    @click.option("--prometheus", type=click.Path(dir_okay=False), help="Write metrics.")
    @click.option(
        "--state",
        type=click.Path(dir_okay=False),
        help="Keep results in this file, and read only new, changed and faulty segments.",
    )
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of processes.",
    )
    @json_flag
    @scan_options("path", "topic", every_topic=True)
    def command(
        options: Mapping[str, str],
        *,
        grace_minutes: int,
        report: str | None,
        prometheus: str | None,
        as_json: bool,
        **arguments: Any,  # noqa: ANN401  # texts and numbers
    ) -> None:
        for file in (report, prometheus):
            if file is not None:
                local_file(file)  # fail before the audit, not after it
        grace_ms = grace_minutes * _MS_PER_MINUTE
        with progress_bar("segments") as update:
            on_read = lambda size: update(advance=size)  # noqa: E731
            result = audit(options, grace_ms=grace_ms, on_read=on_read, **arguments)
        if report is not None:
            write_atomically(report, result.to_json() + "\n")
        if prometheus is not None:
            write_atomically(prometheus, to_prometheus(result))
        if as_json:
            click.echo(result.to_json())
        else:
            _print_audit(result)
        click.get_current_context().exit(result.exit_code)

    return command


audit_command = _audit_command(
    "audit", METADATA, "Prove that topics are complete, or list every fault and what to do."
)
verify_command = _audit_command(
    "verify", BYTES, "Same as audit --level bytes: read every byte and check every checksum."
)


def _print_audit(result: AuditReport) -> None:
    for finding in result.findings:
        echo_printable(f"{finding.severity.value.upper()} {finding.name}: {finding.location}")
        echo_printable(f"  {finding.detail}")
        if finding.objects:
            size = format_bytes(finding.stored_bytes)
            echo_printable(f"  objects ({size}): {some(finding.objects)}")
        echo_printable(f"  {finding.kind.meaning}")
        echo_printable(f"  To do: {finding.kind.advice}")
    if result.findings:
        click.echo("")
    header = ("topic", "partition", "start", "stop", "last stable", "segments", "records", "")
    rows = [
        (printable(partition.topic), partition.partition, *partition.to_row())
        for partition in result.partitions
    ]
    print_table(header, rows)
    text = f"{len(result.errors)} errors, {len(result.findings)} findings at level {result.level}"
    if result.records is not None:
        text += f"; {result.records:,} records are {'served' if result.errors else 'valid'}"
    click.echo(text)
    if result.orphan_bytes:
        dollars = f"about ${result.orphan_dollars_a_month:,.2f} a month"
        click.echo(f"orphans: {format_bytes(result.orphan_bytes)}, {dollars}")


@click.command("report")
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write. -o FILE is the same if the name has no =.",
)
@click.option(
    "--audit",
    "audit_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Show this JSON report of kts audit of the same tier.",
)
@scan_options("path", "topic", every_topic=True, bare="output")
def report_command(
    options: Mapping[str, str], *, output: str | None, audit_file: str | None
) -> None:
    """Write an HTML page of the tier: segments, holes, growth, cost, lag."""
    if output is None:
        raise InvalidOptionError("option --output is missing: set it, such as --output report.html")
    local_file(output)  # fail before the work, not after it
    audited = None if audit_file is None else _read_audit(audit_file)
    page = report(options, audit=audited).to_html()
    write_atomically(output, page)
    click.echo(f"{output}: {format_bytes(len(page.encode()))}", err=True)


def _read_audit(path: str) -> AuditReport:
    try:
        return AuditReport.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"{path} cannot be used: {error}. Set --audit to a file written by kts audit --report."
        ) from None


@click.command()
@click.argument("locations", nargs=-1, required=True, metavar="[PATH [TOPIC]] TARGET")
@click.option("--table-format", help="parquet, delta or iceberg.")
@click.option("--partition-by", multiple=True, help="Column, field or date(column). Repeatable.")
@click.option("--sort-within-files", multiple=True, help="Column or field. Repeatable.")
@click.option("--target-file-bytes", type=int, help="Close a file at this size.")
@click.option("--row-group-rows", type=int, help="Maximum rows of a row group.")
@click.option("--compression", help="Codec of the Parquet pages.")
@click.option("--commit-bytes", type=int, help="Minimum original bytes per commit.")
@click.option("--compact", is_flag=True, help="Keep only the latest record of every key.")
@click.option("--tombstones", help="With --compact: keep, remove or remove-old.")
@click.option("--delete-retention-ms", type=int, help="Minimum age of tombstones for remove-old.")
@click.option("--export-id", help="Distinguishes exports into the same table.")
@click.option("--schema-evolution", help="add: add new fields of values to the table.")
@click.option(
    "--text-partitions",
    help="as-is: allow partition texts that readers may parse as numbers, dates or booleans.",
)
@click.option("--no-resume", is_flag=True, help="Fail if the target has some of the offsets.")
@click.option("--verify", is_flag=True, help="First compare the table with its records.")
@click.option("--follow", is_flag=True, help="Continue with new records until SIGTERM or Ctrl-C.")
@click.option("--interval", help="With --follow: time between rounds, such as 60s, 15m, 1h.")
@click.option(
    "--round-bytes", type=int, help="With --follow: approximate original bytes per round."
)
@click.option(
    "--end-offsets", is_flag=True, help="Only print where TARGET ends, as startingOffsets."
)
@click.option("--catalog", multiple=True, metavar="NAME=VALUE", help="Properties of PyIceberg.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: number of cores.")
@click.option("--spark", "with_spark", is_flag=True, help="Run the tasks in a Spark session.")
@click.option("--clean", is_flag=True, help="Only remove files of failed attempts in the target.")
@click.option(
    "--older-than-hours",
    type=float,
    help="Minimum age of files for --clean, by default a week. Younger ones may be in use.",
)
@click.option("--dry-run", is_flag=True, help="With --clean: only list the files.")
@click.option(
    "--dead-letters",
    metavar="FOLDER",
    help="Folder for rows that cannot be decoded. --clean also cleans this folder.",
)
@click.option("--png", metavar="FILE", help="Save the report as a picture. Needs matplotlib.")
@json_flag
@scan_options(by_option_only=("catalog",))
def export(
    options: dict[str, str],
    *,
    locations: tuple[str, ...],
    no_resume: bool,
    catalog: tuple[str, ...],
    clean: bool,
    end_offsets: bool,
    older_than_hours: float | None,
    dry_run: bool,
    workers: int | None,
    with_spark: bool,
    png: str | None,
    as_json: bool,
    **settings: Any,  # noqa: ANN401  # `ExportArguments`
) -> None:
    """Write the selected topics to TARGET, each offset once. Run the command again to continue."""
    from kts_source.export.settings import export_settings  # other commands do not need it

    *tier, target = locations
    if len(tier) > 2:
        raise click.UsageError(
            f"give at most PATH, TOPIC and TARGET, not {len(locations)} arguments"
        )
    add_location(options, *tier)
    if png is not None:
        require("matplotlib", "plot", "--png")  # fail before the work, not after it
        local_file(png)
    named = {name: value for name, value in settings.items() if value not in (None, ())}
    if catalog:
        named["catalog"] = dict(pair.partition("=")[::2] for pair in catalog)
    named["resume"] = not no_resume
    checked = export_settings(target, source=options, **named)
    if clean:
        _clean(checked, older_than_hours, dry_run=dry_run)
    elif end_offsets:
        from kts_source.export.end_offsets import end_offsets as offsets_of_table

        click.echo(offsets_of_table(source=options, target=target, **named))
    else:
        _run(options, checked, workers, with_spark=with_spark, png=png, as_json=as_json)


def _clean(settings: ExportSettings, older_than_hours: float | None, *, dry_run: bool) -> None:
    from kts_source.export.run import DEFAULT_CLEAN_HOURS, clean

    hours = DEFAULT_CLEAN_HOURS if older_than_hours is None else older_than_hours
    orphans = clean(settings, older_than_hours=hours, remove=not dry_run)
    print_json(sorted(orphan.key for orphan in orphans))


def _run(
    options: dict[str, str],
    settings: ExportSettings,
    workers: int | None,
    *,
    with_spark: bool,
    png: str | None,
    as_json: bool,
) -> None:
    from kts_source.export.follow import follow
    from kts_source.export.progress import NO_PROGRESS, default_progress
    from kts_source.export.run import export as run_export
    from kts_source.export.task_writer import ExportExecutor, LocalExecutor

    follows = settings.following is not None
    progress = NO_PROGRESS if follows else default_progress()
    executor: ExportExecutor = LocalExecutor(workers)
    if with_spark:
        require("pyspark", "spark", "--spark")
        from kts_source.spark.backfill import SparkExecutor
        from kts_source.spark.datasource import session_builder

        executor = SparkExecutor(session_builder().getOrCreate(), progress)
    if follows:
        report = follow(options, settings, executor, on_round=lambda m: click.echo(m.to_json()))
    else:
        report = run_export(options, settings, executor, progress=progress)
    if png is not None:
        report.save_png(png)
    if follows:  # standard output has only a line of JSON per round
        click.echo(str(report), err=True)
    elif as_json:
        print_json(report.to_dict())
    else:
        click.echo(str(report))


@click.group(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiered-kafka", prog_name="kts")
def kts() -> None:
    """Contains all commands."""


for command in (
    *(topics, segments, plan, cat, schema, audit_command, verify_command),
    *(find_command, index_command, report_command, export, restore_command, demo),
):
    kts.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command in `arguments` and returns its exit code. By default, uses the arguments of
    this process.
    """
    try:
        code = kts.main(args=arguments, prog_name="kts", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except TieredKafkaError as error:
        click.echo(f"kts: {error}", err=True)
        if isinstance(error, InvalidOptionError):
            return 2
        return 3 if isinstance(error, DataLossError) else 1
    return code if isinstance(code, int) else 0
