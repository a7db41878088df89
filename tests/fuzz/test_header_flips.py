"""Flips bits in batch headers and checks that no read returns wrong rows.

`KTS_FLIPS` is the number of flips; the default is 150. A failure prints the random seed.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fuzz.header_flips import RIGHT, check_flips

FLIPS = int(os.environ.get("KTS_FLIPS", "150"))


@pytest.mark.fuzz
def test_scans_after_bit_flips_in_headers_never_return_wrong_rows() -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    result = check_flips(FLIPS, seed)
    print(f"seed {seed}: {dict(result.outcomes)}")  # noqa: T201  # for pytest -rP
    assert result.silent == [], f"seed {seed}"
    assert result.tried == FLIPS
    # Fails if every read raises an error or if no flip has an effect.
    assert 0 < result.outcomes[RIGHT] < FLIPS


def test_bit_flips_with_the_same_seed_have_the_same_outcomes() -> None:
    first, second = check_flips(10, 5), check_flips(10, 5)
    assert first.tried == second.tried == 10
    assert first.outcomes == second.outcomes
    assert first.silent == []
