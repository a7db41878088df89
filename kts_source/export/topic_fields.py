"""Finds topics whose keys or values have no field of the schema of an export.

If all names in a schema are misspelled, all values are decoded without an error, but to nulls.
Without this check, such a run would succeed, and no later run could repair the rows.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from segment_format.values.json.ddl import parse_ddl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.options.value_formats import ColumnFormat

log = logging.getLogger(__name__)

_MIN_VALUES: Final = 20
_MAX_NAMES: Final = 100
"""Maximum number of names that are kept, because names may be data, such as ids."""
_SHOWN_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class TopicFields:
    """Fields of the JSON keys or values of a topic.

    Attributes:
        column: `key` or `value`.
        values: Number of keys or values, without nulls.
        has_known: True if one of them has a field of the schema.
        names: Names of fields in a sample of the keys or values.
    """

    column: str
    topic: str
    values: int
    has_known: bool
    names: tuple[str, ...]

    def __add__(self, other: TopicFields) -> TopicFields:
        names = tuple(dict.fromkeys((*self.names, *other.names)))[:_MAX_NAMES]
        has_known = self.has_known or other.has_known
        return replace(self, values=self.values + other.values, has_known=has_known, names=names)


def check_fields(
    fields: Iterable[TopicFields], formats: Sequence[ColumnFormat], *, is_sample: bool = False
) -> None:
    """Raises `InvalidOptionError` if a topic has at least 20 keys or values, and none of them has a
    field of the schema. Logs a warning if only some fields seem to be misspelled.

    `is_sample` is True if the topics may have further keys or values that are not in `fields`. Then
    the message does not claim that none of them has a field.
    """
    kind, other = "", ""
    if is_sample:
        kind = "sampled "
        other = ", or run without the dry run if only other records have such fields"
    sums: dict[tuple[str, str], TopicFields] = {}
    for each in fields:
        key = each.column, each.topic
        sums[key] = sums[key] + each if key in sums else each
    for (column, topic), total in sums.items():
        if total.values < _MIN_VALUES or not total.names:
            continue
        (schema,) = (each.schema for each in formats if each.column == column and each.is_of(topic))
        near = _near_names([each.name for each in parse_ddl(schema)], total.names)
        hints = [f"{name!r} instead of {wrong!r}" for wrong, name in near.items()][:_SHOWN_NAMES]
        hint = f"did you mean {', '.join(hints)}?"
        if total.has_known:
            if hints:
                log.warning(
                    "topic %s: fields of option '%s.schema' are in none of the sampled %ss, so they"
                    " are null in the table; %s",
                    *(topic, column, column, hint),
                )
            continue
        more = ["…"] if len(total.names) > _SHOWN_NAMES else []
        shown = ", ".join([*total.names[:_SHOWN_NAMES], *more])
        raise InvalidOptionError(
            f"none of {total.values:,} {kind}{column}s has a field of option '{column}.schema', so"
            f" all decoded fields would be null. The {column}s have {shown}. Correct"
            f" '{column}.schema' so that it has at least one of these fields{other}"
            f"{f'; {hint}' if hints else ''}",
            topic=topic,
        )


def _near_names(fields: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Returns the fields of a schema that values do not have, and for each the most similar name
    that is only in the values. Fields without a similar name are skipped.
    """
    unknown = {name.lower(): name for name in names if name not in fields}
    return {
        field: unknown[close[0]]
        for field in fields
        if field not in names and (close := difflib.get_close_matches(field.lower(), unknown, n=1))
    }
