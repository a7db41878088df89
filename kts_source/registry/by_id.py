"""What is made of a schema, by the schema's id, and why some ids have none.

A registry is asked once, not for every row, and neither memory nor requests grow with what hostile
values hold.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kts_source.errors import RegistryError, TieredKafkaError
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K", bound="int | str")
T = TypeVar("T")

MAX_SCHEMAS: Final = 1000
"""Schemas that are kept; of more, those that were not used for longest are asked for again."""
MAX_UNKNOWN: Final = 1000
"""Ids without a usable schema that are asked for within `UNKNOWN_SECONDS`: values may hold any."""
UNKNOWN_SECONDS: Final = 300.0


class ById(Generic[K, T]):
    """Makes something of the schema of an id, once, whichever threads ask.

    Args:
        make: Makes it. What it raises says why there is none, but for a TieredKafkaError: then the
            id is not to blame.
    """

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._made: OrderedDict[K, T] = OrderedDict()
        self._unknown: dict[K, str] = {}
        self._since = 0.0
        self._lock = threading.Lock()

    def get(self, schema_id: K) -> T:
        """What was made for an id.

        Raises:
            LookupError: There is no usable schema; it was asked for within `UNKNOWN_SECONDS`.
            RegistryError: So many other ids had none that this one is not asked for: whether there
                is one nobody knows, so it does not count as unknown.
            TieredKafkaError: What `make` raised.
        """
        with self._lock:
            if schema_id not in self._made:
                self._made[schema_id] = self._asked(schema_id)
                if len(self._made) > MAX_SCHEMAS:
                    self._made.popitem(last=False)
            self._made.move_to_end(schema_id)
            return self._made[schema_id]

    def _asked(self, schema_id: K) -> T:
        if time.monotonic() - self._since > UNKNOWN_SECONDS:
            self._unknown, self._since = {}, time.monotonic()
        if (reason := self._unknown.get(schema_id)) is not None:
            raise LookupError(reason)
        if len(self._unknown) >= MAX_UNKNOWN:
            raise RegistryError(
                f"schema {schema_id} is not asked for: of {MAX_UNKNOWN:,} other ids within"
                f" {UNKNOWN_SECONDS:.0f} s there was no usable schema; is this the registry of the"
                " topic, and are its values in the format that is asked for?"
            )
        try:
            return self._make(schema_id)
        except TieredKafkaError:
            raise
        except Exception as error:  # noqa: BLE001  # no such schema, or one that cannot be used
            self._unknown[schema_id] = one_line(f"{type(error).__name__}: {error}")
            raise LookupError(self._unknown[schema_id]) from None
