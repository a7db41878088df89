"""Which examples of a test `make test` runs; the slow suite runs them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet


def only(quick: int, examples: Iterable[object]) -> list[ParameterSet]:
    """Leaves the first `quick` examples to `make test` and marks the others slow."""
    return [
        pytest.param(example, marks=[pytest.mark.slow] if number >= quick else [])
        for number, example in enumerate(examples)
    ]
