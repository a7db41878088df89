"""What decides which rows a table gets: a table begun with one rule must not go on with another."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from kts_source.errors import FingerprintError
from kts_source.export.partitioning import partition_rule

if TYPE_CHECKING:
    from kts_source.export.settings import Compaction, ExportSettings, Transform
    from kts_source.options import ScanOptions

Fingerprint: TypeAlias = Mapping[str, str]
"""Rule to its text, or to a digest of it."""


def fingerprint(options: ScanOptions, settings: ExportSettings) -> Fingerprint:
    """The rules of an export."""
    return {
        "isolationLevel": options.isolation_level,
        "columns": ",".join(options.columns),
        "transform": describe_transform(settings.transform),
        "partitionBy": partition_rule(settings.partition_by),
        "where": "" if options.where is None else repr(options.where),
        "compact": "" if settings.compaction is None else _compaction(options, settings.compaction),
    }


def _compaction(options: ScanOptions, compaction: Compaction) -> str:
    # A rebuild replaces the whole table, so it must cover what the table was built from.
    return f"{compaction.tombstones},{compaction.delete_retention_ms},{options.selection!r}"


def describe_transform(transform: Transform | None) -> str:
    """A text that changes when the transform does, as far as that can be seen.

    A transform may carry a text `fingerprint` of its own; functions are known by their name and
    their source.
    """
    if transform is None:
        return ""
    own = getattr(transform, "fingerprint", None)
    if isinstance(own, str):
        return own
    named: Any = transform if hasattr(transform, "__qualname__") else type(transform)
    name = f"{named.__module__}.{named.__qualname__}"
    try:
        source = inspect.getsource(named)
    except (OSError, TypeError):
        return name
    return f"{name}#{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def number(text: str) -> int:
    """A digest that fits where a table keeps a version: 63 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def check_fingerprint(stored: Fingerprint, given: Fingerprint) -> None:
    """Compares rule by rule; a rule that is not stored is not compared.

    Args:
        stored: Of the table: texts, or their `number` as text where a table keeps no texts.
        given: Of this export.

    Raises:
        FingerprintError: Names every rule that differs.
    """
    different = [
        f"{name} is {given[name]!r} now"
        + ("" if known.isdigit() else f" and was {known!r} when it was begun")
        for name, known in stored.items()
        if name in given and known not in (given[name], str(number(given[name])))
    ]
    if different:
        raise FingerprintError(
            f"the table was begun with other rules: {'; '.join(different)}. Export into another"
            " table, or give another export_id"
        )
