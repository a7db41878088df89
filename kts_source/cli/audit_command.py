"""`kts audit`, and `kts verify`, which is its level `bytes`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from kts_source.auditing.kinds import BYTES, LEVELS, METADATA
from kts_source.auditing.report import to_prometheus
from kts_source.auditing.run import DEFAULT_GRACE_MS, audit
from kts_source.cli.output import print_table, write_whole
from kts_source.cli.scan_options import json_flag, scan_options
from kts_source.store.open_store import local_file
from kts_source.texts import format_bytes, printable, some

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kts_source.auditing.report import AuditReport, Finding

_MS_OF_A_MINUTE: Final = 60_000


def _command(level: str, help_text: str, name: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.option(
        "--level",
        type=click.Choice(LEVELS),
        default=level,
        show_default=True,
        help="How far to look; each level looks at more than the one before.",
    )
    @click.option(
        "--grace-minutes",
        type=click.IntRange(min=0),
        default=DEFAULT_GRACE_MS // _MS_OF_A_MINUTE,
        show_default=True,
        help="Objects of an unfinished copy that are younger are a copy under way.",
    )
    @click.option("--report", type=click.Path(dir_okay=False), help="File for the JSON report.")
    @click.option(
        "--prometheus", type=click.Path(dir_okay=False), help="File for metrics, as a whole."
    )
    @click.option(
        "--state",
        type=click.Path(dir_okay=False),
        help="File that keeps what was proven: only what is new, changed or at fault is read.",
    )
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Processes that audit partitions.",
    )
    @json_flag
    @scan_options("path", "topic", every_topic=True)
    def command(
        options: Mapping[str, str],
        *,
        level: str,
        grace_minutes: int,
        report: str | None,
        prometheus: str | None,
        state: str | None,
        jobs: int,
        as_json: bool,
    ) -> None:
        for file in (report, prometheus):
            if file is not None:
                local_file(file)  # before the work is done
        found = _audited(options, level, grace_minutes * _MS_OF_A_MINUTE, state, jobs)
        if report is not None:
            write_whole(report, found.to_json() + "\n")
        if prometheus is not None:
            write_whole(prometheus, to_prometheus(found))
        if as_json:
            click.echo(found.to_json())
        else:
            _print(found)
        click.get_current_context().exit(found.exit_code)

    return command


_AUDIT_HELP = """Proves the selected topics whole, or names every fault and what to do about it."""
_VERIFY_HELP = """As `audit`, at level bytes: reads every byte and checks every checksum."""

audit_command = _command(METADATA, _AUDIT_HELP, "audit")
verify_command = _command(BYTES, _VERIFY_HELP, "verify")


def _audited(
    options: Mapping[str, str], level: str, grace_ms: int, state: str | None, jobs: int
) -> AuditReport:
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        done = bar.add_task("segments", total=None)
        advance: Callable[[int], object] = lambda size: bar.advance(done, size)  # noqa: E731
        return audit(
            options, level=level, grace_ms=grace_ms, on_read=advance, state=state, jobs=jobs
        )


def _print(report: AuditReport) -> None:
    for one in report.findings:
        _say(f"{one.severity.value.upper()} {one.name}: {_where(one)}")
        _say(f"  {one.detail}")
        if one.objects:
            size = format_bytes(one.stored_bytes)
            _say(f"  objects ({size}): {some(one.objects)}")
        _say(f"  {one.kind.meaning}")
        _say(f"  To do: {one.kind.advice}")
    if report.findings:
        _say("")
    header = ("topic", "partition", "start", "stop", "last stable", "segments", "records", "")
    rows = [
        (
            printable(part.topic),
            part.partition,
            *(
                "?" if value is None else value
                for value in (part.start, part.stop, part.last_stable_offset)
            ),
            part.segments,
            "" if part.records is None else part.records,
            "whole" if part.is_whole else "NOT WHOLE",
        )
        for part in report.partitions
    ]
    print_table(header, rows)
    counts = f"{len(report.errors)} errors, {len(report.findings)} findings at level {report.level}"
    if report.records is not None:
        counts += f"; {report.records:,} records"
        counts += " are sound" if not report.errors else " are served"
    _say(counts)
    if report.orphan_bytes:
        dollars = f"about ${report.orphan_dollars_a_month:,.2f} a month"
        _say(f"orphans: {format_bytes(report.orphan_bytes)}, {dollars}")


def _where(one: Finding) -> str:
    if one.start is None:
        return f"{one.topic}-{one.partition}"
    stop = "…" if one.stop is None else one.stop
    return f"{one.topic}-{one.partition}, offsets [{one.start}, {stop})"


def _say(text: str) -> None:
    click.echo(printable(text), file=sys.stdout)
