"""Equality of frozen dataclasses that hold arrays."""

from __future__ import annotations

from dataclasses import fields

import numpy as np


class ArrayValue:
    """A dataclass with `eq=False` that is equal to one of its class with equal fields."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # arrays inside

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        )
