"""Exports topics into one table or, with a target such as `lake/{topic}`, into a table per topic.

With a table per topic, each topic has an export of its own, with options such as `value.format` of
its own. If a topic fails, the other topics are still exported.
"""

from __future__ import annotations

import json
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
from kts_source.export.settings import ICEBERG, TOPIC_FIELD, ExportArguments, export_settings
from kts_source.options import parse_options
from kts_source.options.parsing import option_texts
from kts_source.options.value_formats import FORMAT_COLUMNS, usable_options
from kts_source.planning.describe import selected_topics
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportSettings
    from kts_source.options import Options

log = logging.getLogger(__name__)

_NEEDS_TOPIC_FIELD: Final = (
    "options of single topics need {topic} in the target, such as lake/{topic}, because a table has"
    " one type per column"
)
_TOPIC_NAME: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")
_SELECTIONS: Final = ("subscribe", "subscribepattern", "assign")
_BY_TOPIC: Final = (
    *("assign", "topicid", "startingoffsets", "endingoffsets"),
    *("startingoffsetsbytimestamp", "endingoffsetsbytimestamp"),
)
"""Options whose text may be a JSON object by topic, in lower case."""
_PER_FORMAT: Final = ("schema", "message", "subject", "columns")
"""Options of a column that belong to its format. A topic with another format does not use them."""


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
            cannot select topics.
        arguments: See `backfill`. `dead_letters` may contain `{topic}`, too.

    Raises:
        InvalidOptionError: An argument is invalid, or two topics have the same table.
        TopicNotFoundError: No topic matches `subscribePattern`.
        TieredKafkaError: `subscribePattern` is set, and the topics cannot be listed.
    """
    if TOPIC_FIELD not in os.fspath(target):
        if topic_options:
            raise InvalidOptionError(_NEEDS_TOPIC_FIELD)
        return [TableExport("", source, export_settings(target, source=source, **arguments))]
    texts = option_texts(source)
    topics = _topics(texts)
    if unknown := sorted(topic_options.keys() - set(topics)):
        raise InvalidOptionError(
            f"topic_options names {', '.join(unknown)}, but the options select"
            f" {', '.join(topics) or 'no topic'}. Use selected topics in topic_options"
        )
    exports: dict[str, TableExport] = {}
    for topic in topics:
        own = option_texts(topic_options.get(topic, {}))
        _check_own(topic, own)
        of_topic = _source_of(topic, texts, own)
        settings = _settings_of(topic, of_topic, target, arguments)
        other = exports.setdefault(settings.target, TableExport(topic, of_topic, settings))
        if other.topic != topic:
            raise InvalidOptionError(
                f"topics {other.topic} and {topic} have the same table {settings.target}: export"
                " one of them separately into another target"
            )
    return list(exports.values())


def run_exports(
    target: str | os.PathLike[str],
    exports: Sequence[TableExport],
    run: Callable[[TableExport], BackfillReport],
) -> BackfillReport:
    """Runs exports one after the other.

    Args:
        target: Argument `target` of `backfill`; may contain `{topic}`.
        exports: Result of `exports_of`.
        run: Runs one export.

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
        except Exception as error:  # raised below with those of other topics
            is_bug = not isinstance(error, TieredKafkaError)
            log.warning(
                "topic %s was not exported: %s", export.topic, _text_of(error), exc_info=is_bug
            )
            errors[export.topic] = error
    report = _sum_of(os.fspath(target), exports, reports)
    if errors:
        texts = "; ".join(f"{topic}: {_text_of(error)}" for topic, error in errors.items())
        raise TopicsFailedError(
            f"{len(errors)} of {len(exports)} topics were not exported. Correct their errors and"
            f" run again: {texts}",
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


def _topics(texts: Mapping[str, str]) -> list[str]:
    """Returns the names of the selected topics, sorted. Checks the options before they are split by
    topic, except the formats of keys and values, which may depend on the topic.
    """
    if "planfile" in map(str.lower, texts):
        raise InvalidOptionError(
            f"option 'planFile' cannot be combined with {TOPIC_FIELD} in the target: a plan has all"
            " topics. Remove one of them"
        )
    prefixes = tuple(f"{column}." for column in FORMAT_COLUMNS)
    options = parse_options(
        {
            name: text
            for name, text in texts.items()
            if not name.lower().startswith(prefixes) and name.lower() not in ("where", "columns")
        }
    )
    topics = selected_topics(options)
    for topic in topics:
        if not _TOPIC_NAME.fullmatch(topic):
            raise ExportError(
                f"{topic!r} is not a valid name of a topic, so it cannot replace {TOPIC_FIELD} in"
                " the target: correct the options that select topics"
            )
    _refuse_other_topics(texts, topics)
    return topics


def _check_own(topic: str, own: Mapping[str, str]) -> None:
    """Raises `InvalidOptionError` if the options of a single topic select topics."""
    for name in own:
        if name.lower() in (*_SELECTIONS, "planfile"):
            raise InvalidOptionError(
                f"topic_options of {topic!r} have option {name!r}, but only the options of all"
                " topics can select topics. Remove it from topic_options"
            )
    _refuse_other_topics(own, [topic])


def _refuse_other_topics(texts: Mapping[str, str], topics: Sequence[str]) -> None:
    """Raises `InvalidOptionError` if a JSON object by topic, such as `startingOffsets`, names other
    topics than `topics`.
    """
    for name, text in texts.items():
        if others := sorted(_by_topic(name, text).keys() - set(topics)):
            raise InvalidOptionError(
                f"option {name!r} names {some(others)}, but the options select {some(topics)}."
                " Use selected topics in the option"
            )


def _source_of(topic: str, texts: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Returns the options for the export of `topic`: `own`, and the options of `texts` that `own`
    does not replace. If `own` has another format of a column, the options of the old format are
    dropped.
    """
    own_names = {name.lower(): name for name in own}
    dropped = {*own_names, *_SELECTIONS}
    for column in FORMAT_COLUMNS:
        if f"{column}.format" in own_names:
            usable = usable_options(own[own_names[f"{column}.format"]])
            dropped |= {
                name.lower()
                for name in texts
                if name.lower().startswith(f"{column}.")
                and (option := name.lower().partition(".")[2])
                and (option in _PER_FORMAT or option not in usable)
            }
    kept = dict(_without_other_topics(topic, texts))
    source = {name: text for name, text in kept.items() if name.lower() not in dropped}
    assigned = {name: text for name, text in kept.items() if name.lower() == "assign"}
    return {**source, **(assigned or {"subscribe": topic}), **own}


def _without_other_topics(topic: str, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the options. JSON objects by topic, such as `startingOffsets`, keep only the entry of
    `topic`; an option without this entry is omitted.
    """
    for name, text in texts.items():
        values = _by_topic(name, text)
        if not values:
            yield name, text
        elif topic in values:
            yield name, json.dumps({topic: values[topic]})


def _by_topic(name: str, text: str) -> Mapping[str, object]:
    """Returns the entries of an option that is a JSON object by topic. Returns no entries for other
    options and for invalid JSON, which `parse_options` reports.
    """
    if name.lower() not in _BY_TOPIC or not text.lstrip().startswith("{"):
        return {}
    try:
        values: dict[str, object] = json.loads(text)
    except ValueError:
        return {}
    return values


def _settings_of(
    topic: str,
    source: Mapping[str, str],
    target: str | os.PathLike[str],
    arguments: ExportArguments,
) -> ExportSettings:
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
