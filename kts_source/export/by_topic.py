"""Exports topics into one table or, with a target such as `lake/{topic}`, into a table per topic.

With a table per topic, each topic has an export of its own, with options such as `value.format` of
its own. If a topic fails, the other topics are still exported.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Unpack

from kts_source.errors import (
    ExportError,
    InvalidOptionError,
    TieredKafkaError,
    TopicsFailedError,
)
from kts_source.export.report import add_reports, empty_report
from kts_source.export.settings import (
    ICEBERG,
    PARQUET,
    TOPIC_FIELD,
    ExportArguments,
    check_letters,
    export_settings,
    location_of,
)
from kts_source.planning.topic_options import for_each_topic, sources_by_topic
from kts_source.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportSettings
    from kts_source.options import Options

log = logging.getLogger(__name__)

_TOPIC_NAME: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TableExport:
    """An export into one table.

    Attributes:
        topic: Name of the topic if there is a table per topic; otherwise empty.
        source: Options of the source. With a table per topic, they select only `topic`.
        settings: Settings of the export; `{topic}` is replaced.
    """

    topic: str
    source: Options
    settings: ExportSettings


def exports_of(
    source: Options,
    target: str | os.PathLike[str],
    topic_options: Mapping[str, Options],
    **arguments: Unpack[ExportArguments],
) -> list[TableExport]:
    """Returns the exports for a call of `backfill`: one for each topic if `target` contains
    `{topic}`, otherwise a single one.

    Args:
        source: Options of the source for all topics.
        target: The target. `{topic}` is replaced by the name of the topic; for Iceberg, with `_`
            in place of `.`.
        topic_options: Options of single topics, by topic. They take precedence over `source`, but
            cannot select topics. Without `{topic}`, they can only have options `key.*` and
            `value.*`, which are checked when the export begins.
        arguments: See `backfill`. `dead_letters` may contain `{topic}`, too.

    Raises:
        InvalidOptionError: An argument is invalid, or two topics have the same table.
        TopicNotFoundError: No topic matches `subscribePattern`.
        TieredKafkaError: `subscribePattern` is set, and the topics cannot be listed.
    """
    if TOPIC_FIELD not in os.fspath(target):
        single = export_settings(target, source=source, **arguments)
        return [TableExport("", source, replace(single, topic_options=Secret(topic_options)))]
    sources = sources_by_topic(source, topic_options)

    def export_of(topic: str, of_topic: dict[str, str]) -> TableExport:
        return TableExport(topic, of_topic, _settings_of(topic, of_topic, target, arguments))

    exports: dict[str, TableExport] = {}
    for topic, export in for_each_topic(sources, export_of).items():
        other = exports.setdefault(export.settings.target, export)
        if other.topic != topic:
            raise InvalidOptionError(
                f"topics {other.topic} and {topic} have the same table {export.settings.target}:"
                " export one of them separately into another target"
            )
    settings = [export.settings for export in exports.values()]
    tables = {location_of(e.target): e.target for e in settings if e.table_format == PARQUET}
    for letters in dict.fromkeys(each.dead_letters for each in settings):
        if letters is not None and tables:
            check_letters(letters, tables)
    return list(exports.values())


def run_exports(
    target: str | os.PathLike[str],
    exports: Sequence[TableExport],
    run: Callable[[TableExport], BackfillReport],
    check: Callable[[BackfillReport], object] = lambda _report: None,
) -> BackfillReport:
    """Runs exports one after the other.

    Args:
        target: Argument `target` of `backfill`; may contain `{topic}`.
        exports: Result of `exports_of`.
        run: Runs one export.
        check: Raises an error if the report of a topic is a failure. Not called without `{topic}`.

    Returns:
        Without `{topic}`, the report of the export. Otherwise, a report with the sums of all
        exports and with the report of each topic in `tables`.

    Raises:
        TopicsFailedError: Exports of some topics failed. The exports of the other topics succeeded.
    """
    if TOPIC_FIELD not in os.fspath(target):
        return run(exports[0])
    reports: list[BackfillReport] = []
    errors: dict[str, Exception] = {}
    for export in exports:
        try:
            reports.append(run(export))
            check(reports[-1])
        except Exception as error:  # all errors are raised together after the loop
            is_bug = not isinstance(error, TieredKafkaError)
            log.warning("topic %s failed: %s", export.topic, _text_of(error), exc_info=is_bug)
            errors[export.topic] = error
    report = _sum_of(os.fspath(target), exports, reports)
    if errors:
        texts = "; ".join(f"{topic}: {_text_of(error)}" for topic, error in errors.items())
        failed = "would fail" if exports[0].settings.dry_run else "were not exported"
        raise TopicsFailedError(
            f"{len(errors)} of {len(exports)} topics {failed}. Correct their errors and run again:"
            f" {texts}",
            errors=errors,
            targets={each.topic: each.settings.target for each in exports if each.topic in errors},
            report=report,
            uri=report.target,
        ) from next(iter(errors.values()))
    return report


def _text_of(error: Exception) -> str:
    """Returns the text of an error; with its class if the text alone may not explain the error."""
    return str(error) if isinstance(error, TieredKafkaError) else f"{type(error).__name__}: {error}"


def _sum_of(
    target: str, exports: Sequence[TableExport], reports: Sequence[BackfillReport]
) -> BackfillReport:
    total = reduce(add_reports, reports, empty_report(target, exports[0].settings.table_format))
    newest = [report.newest_ms for report in reports if report.newest_ms is not None]
    return replace(
        total, target=target, run_id="", newest_ms=max(newest, default=None), tables=tuple(reports)
    )


def _settings_of(
    topic: str,
    source: Mapping[str, str],
    target: str | os.PathLike[str],
    arguments: ExportArguments,
) -> ExportSettings:
    if not _TOPIC_NAME.fullmatch(topic):
        raise ExportError(
            f"{topic!r} is not a valid name of a topic, so it cannot replace {TOPIC_FIELD} in the"
            " target: correct the options that select topics"
        )
    named = arguments.copy()
    if (letters := named.get("dead_letters")) is not None:
        named["dead_letters"] = os.fspath(letters).replace(TOPIC_FIELD, topic)
    is_iceberg = named.get("table_format") == ICEBERG
    name = topic.replace(".", "_") if is_iceberg else topic
    settings = export_settings(os.fspath(target).replace(TOPIC_FIELD, name), source=source, **named)
    if settings.following is not None:
        raise InvalidOptionError(
            f"follow=True cannot be combined with {TOPIC_FIELD} in the target: follow each topic in"
            " a process of its own"
        )
    return settings
