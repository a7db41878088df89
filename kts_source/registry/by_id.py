"""What is made of a schema, by the schema's id, and why some ids have none.

A registry is asked once, not for every row, and neither memory nor requests grow with what hostile
values hold.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kts_source.errors import TieredKafkaError
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_SCHEMAS: Final = 1000
"""Schemas that are kept; of more, those that were not used for longest are asked for again."""
MAX_UNKNOWN: Final = 1000
"""Ids without a usable schema that are asked for within `UNKNOWN_SECONDS`: values may hold any."""
UNKNOWN_SECONDS: Final = 300.0


class ById(Generic[T]):
    """Makes something of the schema of an id, once.

    Args:
        make: Makes it. What it raises says why there is none, but for a TieredKafkaError: then the
            id is not to blame.

    Attributes:
        get: What was made for an id. Raises LookupError where there is none, or too many others
            have none, and the TieredKafkaError that `make` raised.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._unknown: dict[int, str] = {}
        self._since = 0.0
        self.get = lru_cache(MAX_SCHEMAS)(self._made)

    def _made(self, schema_id: int) -> T:
        if time.monotonic() - self._since > UNKNOWN_SECONDS:
            self._unknown, self._since = {}, time.monotonic()
        if (reason := self._unknown.get(schema_id)) is not None:
            raise LookupError(reason)
        if len(self._unknown) >= MAX_UNKNOWN:
            raise LookupError(
                f"schema {schema_id} was not asked for: {MAX_UNKNOWN:,} other ids had no usable"
                " schema"
            )
        try:
            return self._make(schema_id)
        except TieredKafkaError:
            raise
        except Exception as error:  # noqa: BLE001  # no such schema, or one that cannot be used
            self._unknown[schema_id] = one_line(f"{type(error).__name__}: {error}")
            raise LookupError(self._unknown[schema_id]) from None
