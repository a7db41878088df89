"""Defines functions that build a transform with a bound value, for example as a closure, partial or
method. Also defines the values.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable


def stamped(batch: pa.RecordBatch, version: Any = 0, *, more: Any = None) -> pa.RecordBatch:  # noqa: ANN401
    return batch.append_column("version", pa.repeat(pa.scalar(version or more), batch.num_rows))


def closure(bound: Any) -> Callable[[pa.RecordBatch], pa.RecordBatch]:  # noqa: ANN401
    def inner(batch: pa.RecordBatch) -> pa.RecordBatch:
        return stamped(batch, bound)

    return inner


def with_default(bound: Any) -> Callable[..., pa.RecordBatch]:  # noqa: ANN401
    def inner(batch: pa.RecordBatch, version: Any = bound, *, more: Any = bound) -> pa.RecordBatch:  # noqa: ANN401
        return stamped(batch, version, more=more)

    return inner


def decorated(bound: Any) -> Callable[..., pa.RecordBatch]:  # noqa: ANN401
    @functools.wraps(stamped)
    def inner(batch: pa.RecordBatch) -> pa.RecordBatch:
        return stamped(batch, bound)

    return inner


def recursive(bound: Any) -> Callable[..., Any]:  # noqa: ANN401
    def inner(batch: pa.RecordBatch) -> Any:  # noqa: ANN401
        return inner(batch) if bound else batch

    return inner


@dataclass(frozen=True)
class Stamp:
    version: Any
    others: list[Any] = field(default_factory=list)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return stamped(batch, self.version)

    def applied(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self(batch)


@dataclass(frozen=True, slots=True)
class Slotted:
    version: Any

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return stamped(batch, self.version)


KINDS: dict[str, Callable[[Any], Any]] = {
    "partial": lambda bound: functools.partial(stamped, version=bound),
    "positional": lambda bound: functools.partial(stamped, bound),
    "nested": lambda bound: functools.partial(closure(bound)),
    "closure": closure,
    "default": with_default,
    "decorated": decorated,
    "recursive": recursive,
    "lambda": lambda bound: lambda batch: stamped(batch, bound),
    "callable": Stamp,
    "slotted": Slotted,
    "method": lambda bound: Stamp(bound).applied,
    "deep": lambda bound: Stamp(1, [{"a": (Stamp(bound),)}]),
}
VALUES: dict[str, Callable[[], Any]] = {
    "int": lambda: 1,
    "bool": lambda: True,
    "text": lambda: "1",
    "bytes": lambda: b"1",
    "float": lambda: 1.0,
    "decimal": lambda: Decimal("1.0"),
    "list": lambda: [1, 2],
    "tuple": lambda: (1, 2),
    "reversed": lambda: [2, 1],
    "set": lambda: {"a", "b", "c"},
    "fewer": lambda: {"a", "b"},
    "dict": lambda: {"a": 1},
    "pattern": lambda: re.compile("a+"),
    "other pattern": lambda: re.compile("a+", re.IGNORECASE),
    "schema": lambda: pa.schema([("a", pa.int64())]),
    "other schema": lambda: pa.schema([("a", pa.int32())]),
    "array": lambda: pa.array([1, 2]),
    "numbers": lambda: np.array([1, 2]),
    "path": lambda: Path("/a"),
    "module": lambda: os,
    "class": lambda: Stamp,
    "function": lambda: stamped,
    "library": lambda: pc.add,
    "other of the library": lambda: pc.subtract,
    "builtin": lambda: len,
    "bound builtin": lambda: [1].append,
}
