"""Which examples of a test `make test` runs; the slow suite runs them all."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet


# Workers of pytest-xdist inherit it, so all of them collect the same examples.
_SEED = os.environ.setdefault("KTS_EXAMPLES_SEED", str(random.SystemRandom().randrange(1 << 31)))


def examples_source(name: str) -> random.Random:
    """Return the source for a random choice of examples, equal in all processes of a run.

    Args:
        name: Module that chooses.
    """
    return random.Random(f"{_SEED} {name}")


def only(quick: int, examples: Iterable[object]) -> list[ParameterSet]:
    """Leaves the first `quick` examples to `make test` and marks the others slow."""
    return [
        pytest.param(example, marks=[pytest.mark.slow] if number >= quick else [])
        for number, example in enumerate(examples)
    ]
