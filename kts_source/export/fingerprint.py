"""The rules that decide which rows a table gets: a table begun with some goes on with no others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import FingerprintError
from kts_source.export.partitioning import partition_rule
from kts_source.export.transform_digest import (
    digest_transform,
    own_fingerprint,
    qualified_name,
    source_of,
)
from kts_source.options.value_formats import DROP_MALFORMED, PERMISSIVE

if TYPE_CHECKING:
    from kts_source.export.settings import ExportSettings, Transform
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat

Fingerprint: TypeAlias = Mapping[str, str]
"""Rule to its text, or to a digest of it."""

_BOUND: Final = re.compile(r"~[0-9a-f]{32}\Z")


def fingerprint(options: ScanOptions, settings: ExportSettings) -> Fingerprint:
    """The rules of an export."""
    compact = ""
    if (how := settings.compaction) is not None:
        # A rebuild replaces the whole table, so it must cover what the table was built from.
        compact = f"{how.tombstones},{how.delete_retention_ms},{options.selection!r}"
    return {
        "isolationLevel": options.isolation_level,
        "columns": ",".join(_column_rules(options, settings)),
        "transform": describe_transform(settings.transform),
        "partitionBy": partition_rule(settings.partition_by),
        "where": "" if options.where is None else repr(options.where),
        "compact": compact,
    }


def _column_rules(options: ScanOptions, settings: ExportSettings) -> Iterator[str]:
    """Columns and how they are decoded.

    Types are not among them where the table's columns tell them: those may grow. What a transform
    makes of a type, nobody can tell.
    """
    formats = {form.column: form for form in options.formats}
    for name in options.columns:
        form = formats.pop(name, None)
        yield name if form is None else _decoding(form, settings)
    for form in formats.values():
        if form.mode == DROP_MALFORMED:  # rows are left out even where the column is not written
            yield f"{form.column}:{form.format}:{DROP_MALFORMED}"


def _decoding(form: ColumnFormat, settings: ExportSettings) -> str:
    """Where malformed values end a run or are left out, the table has none: so who met one may go
    on without such rows.
    """
    mode = f":{PERMISSIVE}" if form.mode == PERMISSIVE else ""
    kind = "" if settings.transform is None else f":{number(str(form.type))}"
    return f"{form.column}:{form.format}{mode}{kind}"


def describe_transform(transform: Transform | None) -> str:
    """A text that changes when the transform does, as far as that can be seen.

    A transform may carry a text `fingerprint` of its own; others are known by their name, a digest
    of their source, and one of all that is bound to them (see `transform_digest`).

    Raises:
        FingerprintError: Something bound to it cannot be told from others of its kind.
    """
    if transform is None:
        return ""
    if (own := own_fingerprint(transform)) is not None:
        return own
    named: Any = transform if hasattr(transform, "__qualname__") else type(transform)
    code, source = qualified_name(named), source_of(named)
    if source is not None:
        code += f"#{hashlib.sha256(source).hexdigest()[:16]}"
    # Tables begun by earlier versions have the code only.
    return f"{code}~{digest_transform(transform)}"


def number(text: str) -> int:
    """A digest that fits where a table keeps a version: 63 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _texts(rule: str) -> Iterator[str]:
    """A rule as tables may have it: as it is, as earlier versions gave it, and their digests."""
    for text in {rule, _BOUND.sub("", rule)}:
        yield text
        yield str(number(text))


def check_fingerprint(stored: Fingerprint, given: Fingerprint) -> None:
    """Compares rule by rule; a rule that is not stored is not compared.

    Of a transform, tables begun by earlier versions have name and source only: these are compared
    then, and the next commit stores all of it. A table that keeps no texts has their `number`.

    Raises:
        FingerprintError: Names every rule that differs.
    """
    different = [
        f"{name} is {given[name]!r} now"
        + ("" if known.isdigit() else f" and was {known!r} when it was begun")
        for name, known in stored.items()
        if name in given and known not in _texts(given[name])
    ]
    if different:
        raise FingerprintError(
            f"the table was begun with other rules: {'; '.join(different)}. Export into another"
            " table, or give another export_id"
        )
