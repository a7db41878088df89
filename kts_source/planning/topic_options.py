"""Splits the options of a source by topic, so that each topic can have options of its own, such as
`value.format`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.options.parsing import option_texts
from kts_source.options.value_formats import FORMAT_COLUMNS, usable_options
from kts_source.planning.describe import selected_topics
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.options import Options, ScanOptions

TABLE_PER_TOPIC: Final = "write a table per topic, with {topic} in the target such as lake/{topic}"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SELECTIONS: Final = ("subscribe", "subscribepattern", "assign")
_BY_TOPIC: Final = (
    *("assign", "topicid", "startingoffsets", "endingoffsets"),
    *("startingoffsetsbytimestamp", "endingoffsetsbytimestamp"),
)
"""Options whose text may be a JSON object by topic, in lower case."""
_PER_FORMAT: Final = ("schema", "message", "subject", "columns")
"""Options of a column that belong to its format. A topic with another format does not use them."""


def sources_by_topic(
    source: Options, topic_options: Mapping[str, Options]
) -> dict[str, dict[str, str]]:
    """Returns the options of each selected topic, in order of topics. They select only this topic.

    Args:
        source: Options for all topics.
        topic_options: Options of single topics, by topic. They take precedence over `source`, but
            cannot select topics.

    Raises:
        InvalidOptionError: Options are invalid, or name topics that `source` does not select.
        TopicNotFoundError: No topic matches `subscribePattern`.
        TieredKafkaError: `subscribePattern` is set, and the topics cannot be listed.
    """
    texts = option_texts(source)
    topics = _topics(texts)
    if unknown := sorted(topic_options.keys() - set(topics)):
        raise InvalidOptionError(
            f"topic_options names {', '.join(unknown)}, but the options select"
            f" {', '.join(topics) or 'no topic'}. Use selected topics in topic_options"
        )
    own = {topic: option_texts(topic_options.get(topic, {})) for topic in topics}
    for_each_topic(own, _check_own)
    return {topic: _source_of(topic, texts, own[topic]) for topic in topics}


def options_by_topic(source: Options, topic_options: Mapping[str, Options]) -> ScanOptions:
    """Returns the options of one scan of all topics, in which each topic has formats of its own.

    Args:
        source: Options for all topics.
        topic_options: Options `key.*` and `value.*` of single topics, by topic; if it is empty, all
            topics have the formats of `source`.

    Raises:
        InvalidOptionError: Options are invalid, or the rows of the topics have different columns.
        TopicNotFoundError: No topic matches `subscribePattern`.
        TieredKafkaError: See `sources_by_topic`, and `parse_options`.
    """
    if not topic_options:
        return parse_options(source)
    prefixes = tuple(f"{column}." for column in FORMAT_COLUMNS)
    for topic, own in topic_options.items():
        if refused := [name for name in own if not name.lower().startswith(prefixes)]:
            raise InvalidOptionError(
                f"topic_options of {topic!r} have option {refused[0]!r}, but in one table only"
                f" options key.* and value.* can differ by topic. Set it for all topics, or"
                f" {TABLE_PER_TOPIC}"
            )
    sources = sources_by_topic(source, topic_options)
    parsed = for_each_topic(sources, lambda _, of_topic: parse_options(of_topic))
    (first, options), *others = parsed.items()
    for topic, of_topic in others:
        _check_equal_columns(first, options, topic, of_topic)
    texts = _without_formats(option_texts(source))
    if pattern := [name for name in texts if name.lower() == "subscribepattern"]:
        del texts[pattern[0]]
        texts["subscribe"] = ",".join(sources)  # a topic that is created now has no format yet
    base = parse_options(texts)
    return replace(
        base,
        columns=options.columns,
        where=options.where,
        given=base.given | options.given,
        formats=tuple(
            replace(form, topic=topic) for topic, each in parsed.items() for form in each.formats
        ),
    )


def _check_equal_columns(first: str, options: ScanOptions, topic: str, other: ScanOptions) -> None:
    """Raises `InvalidOptionError` if the rows of two topics cannot have the same columns."""
    pair = f"topics {first} and {topic} cannot be in one table"
    modes = [{form.column: form.mode for form in each.formats} for each in (options, other)]
    for column in FORMAT_COLUMNS:
        one, two = (mode.get(column) for mode in modes)
        if one == two:
            continue
        if None in (one, two):
            raise InvalidOptionError(
                f"{pair}: the {column}s of only one of them are decoded. Set option"
                f" '{column}.format' for both, or {TABLE_PER_TOPIC}"
            )
        raise InvalidOptionError(
            f"{pair}: option '{column}.mode' is {one} for {first} and {two} for {topic}. Set the"
            " same mode for both"
        )
    if options.where != other.where:
        raise InvalidOptionError(
            f"option 'where' compares a field whose type differs in topics {first} and {topic}."
            " Remove this condition, or use the same type"
        )


def for_each_topic(
    items: Mapping[str, _Item], call: Callable[[str, _Item], _Result]
) -> dict[str, _Result]:
    """Calls a function for each topic. Returns the results by topic.

    Args:
        items: Second argument of the function, by topic.
        call: The function.

    Raises:
        InvalidOptionError: `call` raised this error for one or more topics. The message names all
            of them.
    """
    results: dict[str, _Result] = {}
    failed: dict[str, list[str]] = {}
    for topic, item in items.items():
        try:
            results[topic] = call(topic, item)
        except InvalidOptionError as error:
            failed.setdefault(str(error), []).append(topic)
    if failed:
        texts = (f"{', '.join(topics)}: {text}" for text, topics in failed.items())
        raise InvalidOptionError("; ".join(texts))
    return results


def _topics(texts: Mapping[str, str]) -> list[str]:
    """Returns the names of the selected topics, sorted. Checks the options before they are split by
    topic, except the formats of keys and values, which may depend on the topic.
    """
    if "planfile" in map(str.lower, texts):
        raise InvalidOptionError(
            "option 'planFile' cannot be combined with options or tables per topic, because a plan"
            " has all topics. Remove one of them"
        )
    topics = selected_topics(parse_options(_without_formats(texts)))
    _refuse_other_topics(texts, topics)
    return topics


def _without_formats(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns the options that do not depend on the formats of keys and values."""
    prefixes = tuple(f"{column}." for column in FORMAT_COLUMNS)
    return {
        name: text
        for name, text in texts.items()
        if not name.lower().startswith(prefixes) and name.lower() not in ("where", "columns")
    }


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
        if name.lower() in _SELECTIONS:  # may have topics with an empty list of partitions
            continue
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
