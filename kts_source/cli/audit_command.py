"""The commands `kts audit`, `kts verify` and `kts report`, which check and draw a tier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kts_source.auditing.report import BYTES, LEVELS, METADATA, AuditReport, to_prometheus
from kts_source.auditing.run import DEFAULT_GRACE_MS, audit
from kts_source.cli.flags import Command, Integer, flag
from kts_source.cli.output import (
    check_output,
    echo_printable,
    print_json,
    print_table,
    progress_bar,
    write_atomically,
)
from kts_source.cli.scan_options import json_flag, scan_options
from kts_source.errors import InvalidOptionError
from kts_source.reporting.page import report
from kts_source.texts import format_bytes, printable, some

if TYPE_CHECKING:
    from collections.abc import Mapping

_MS_PER_MINUTE = 60_000


def _audit_command(
    name: str, default_level: str, help_text: str, examples: tuple[str, ...]
) -> click.Command:
    @click.command(name, help=help_text, cls=Command, examples=examples)
    @flag(
        "--level",
        type=click.Choice(LEVELS),
        default=default_level,
        show_default=True,
        help="How thorough the audit is. Each level includes those before it.",
    )
    @flag(
        "--grace-minutes",
        type=Integer(min=0),
        default=DEFAULT_GRACE_MS // _MS_PER_MINUTE,
        show_default=True,
        help="Younger objects of an unfinished copy count as a running copy.",
    )
    @flag("--report", type=click.Path(dir_okay=False), help="Write the report as JSON.")
    @flag("--prometheus", type=click.Path(dir_okay=False), help="Write metrics.")
    @flag(
        "--state",
        type=click.Path(dir_okay=False),
        help="Keep results in this file, and read only new, changed and faulty segments.",
    )
    @flag(
        "--jobs",
        type=Integer(min=1),
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
        _run(options, grace_minutes, report, prometheus, as_json=as_json, **arguments)

    return command


def _run(
    options: Mapping[str, str],
    grace_minutes: int,
    report: str | None,
    prometheus: str | None,
    *,
    as_json: bool,
    **arguments: Any,  # noqa: ANN401  # texts and numbers
) -> None:
    for file in (report, prometheus):
        if file is not None:
            check_output(file)  # fail before the audit, not after it
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


audit_command = _audit_command(
    "audit",
    METADATA,
    "Prove that topics are complete, or list all faults.",
    (
        "kts audit s3://bucket --key-prefix tiered/",
        "kts audit s3://bucket orders --key-prefix tiered/ --report audit.json",
    ),
)
verify_command = _audit_command(
    "verify",
    BYTES,
    "Read every byte and check every checksum (audit --level bytes).",
    ("kts verify s3://bucket orders --key-prefix tiered/ --jobs 4",),
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


@click.command(
    "report",
    cls=Command,
    examples=("kts report s3://bucket --key-prefix tiered/ --output report.html",),
)
@flag("--output", type=click.Path(dir_okay=False), help="File to write.  [required]")
@flag(
    "--audit",
    "audit_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Show this JSON report of kts audit of the same tier.",
)
@json_flag
@scan_options("path", "topic", every_topic=True)
def report_command(
    options: Mapping[str, str], *, output: str | None, audit_file: str | None, as_json: bool
) -> None:
    """Write an HTML page of segments, holes, growth, cost and lag."""
    if output is None:
        raise InvalidOptionError("option --output is missing: set it, such as --output report.html")
    check_output(output)  # fail before the work, not after it
    if Path(output).suffix.lower() not in (".html", ".htm"):
        raise InvalidOptionError(
            f"--output {output} does not end with .html: the report is a page for browsers."
            " Use a name such as report.html"
        )
    audited = None if audit_file is None else _read_audit(audit_file)
    page = report(options, audit=audited).to_html()
    write_atomically(output, page)
    size = len(page.encode())
    if as_json:
        print_json({"file": output, "bytes": size})
    else:
        click.echo(f"{output}: {format_bytes(size)}", err=True)


def _read_audit(path: str) -> AuditReport:
    try:
        return AuditReport.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"{path} cannot be used: {error}. Set --audit to a file written by kts audit --report."
        ) from None
