"""Flips of header bits that no read may answer with wrong rows.

`KTS_FLIPS` is how many a run tries (150 when it is not set), from a fresh seed that failures print.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fuzz.header_flips import RIGHT, check_flips

FLIPS = int(os.environ.get("KTS_FLIPS", "150"))


@pytest.mark.fuzz
def test_header_flips_never_return_wrong_rows() -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    result = check_flips(FLIPS, seed)
    print(f"seed {seed}: {dict(result.outcomes)}")  # noqa: T201  # for pytest -rP
    assert result.silent == [], f"seed {seed}"
    assert result.tried == FLIPS
    # A reader that refuses everything, or never sees a flip, would pass the check above.
    assert 0 < result.outcomes[RIGHT] < FLIPS


def test_the_same_seed_gives_the_same_flips() -> None:
    once, again = check_flips(10, 5), check_flips(10, 5)
    assert once.tried == again.tried == 10
    assert once.outcomes == again.outcomes
    assert once.silent == []
