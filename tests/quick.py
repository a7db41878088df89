"""Chooses the examples that `make test` and the slower suites run."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet


_Example = TypeVar("_Example")

# Workers of pytest-xdist inherit the seed, so all of them collect the same examples.
_SEED = os.environ.setdefault("KTS_EXAMPLES_SEED", str(random.SystemRandom().randrange(1 << 31)))


def examples_source(name: str) -> random.Random:
    """Returns a random generator that is the same in all processes of a run for the same module
    `name`.
    """
    return random.Random(f"{_SEED} {name}")


def examples(count: int) -> int:
    """Returns the number of examples of a property test: `count` if `KTS_ALL_EXAMPLES=1`, as in
    `.ci/run`, otherwise a quarter.
    """
    return count if os.environ.get("KTS_ALL_EXAMPLES") == "1" else count // 4


def sample(count: int, examples: Iterable[_Example]) -> list[_Example]:
    """Returns `count` random examples in their order, or all of them if `KTS_ALL_EXAMPLES=1`."""
    everything = list(examples)
    if os.environ.get("KTS_ALL_EXAMPLES") == "1":
        return everything
    numbers = examples_source(repr(everything[:1])).sample(range(len(everything)), count)
    return [everything[number] for number in sorted(numbers)]


def only(quick: int, examples: Iterable[object]) -> list[ParameterSet]:
    """Marks all examples as slow except the first `quick`, which `make test` runs."""
    return [
        pytest.param(example, marks=[pytest.mark.slow] if number >= quick else [])
        for number, example in enumerate(examples)
    ]
