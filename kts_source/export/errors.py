"""What can go wrong between decoded rows and a committed table."""

from __future__ import annotations

from kts_source.errors import TieredKafkaError


class ExportError(TieredKafkaError):
    """An export that cannot begin or go on."""


class RangeGapError(ExportError):
    """Offsets between what is committed and what would be committed next are missing."""


class RangeOverlapError(ExportError):
    """Offsets that would be committed are committed already."""


class CommitConflictError(ExportError):
    """Another export committed the same partitions in the meantime; nothing was committed."""


class FingerprintError(ExportError):
    """The table was begun with other rules (isolation, columns, transform, partitioning)."""


class TransformError(ExportError):
    """A transform that failed, or returned what cannot be written."""


class UnsupportedTargetError(ExportError):
    """A target that cannot keep the promise of exactly once."""
