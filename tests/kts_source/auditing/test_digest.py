"""The digest by its definition, however its batches are cut into parts."""

from __future__ import annotations

import hashlib
import itertools
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kts_source.auditing.digest import PartDigest


def by_definition(batches: list[tuple[int, int]]) -> str:
    total = 0
    for _, block in itertools.groupby(batches, key=lambda one: one[0] // 4096):
        data = b"".join(struct.pack(">qI", *one) for one in block)
        total += int.from_bytes(hashlib.sha256(data).digest(), "big")
    return f"{total % 2**256:064x}"


STEPS = st.lists(
    st.tuples(st.sampled_from([1, 100, 3000, 4096, 9000]), st.integers(0, 2**32 - 1)), max_size=40
)


@given(steps=STEPS, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_parts(steps: list[tuple[int, int]], cuts: list[int]) -> None:
    bases = list(itertools.accumulate(step for step, _ in steps))
    batches = [(base, crc) for base, (_, crc) in zip(bases, steps, strict=True)]
    whole = PartDigest()
    for low, high in itertools.pairwise([0, *sorted(cuts), len(batches)]):
        one = PartDigest()
        for part in (batches[low:high][:3], batches[low:high][3:]):
            columns = np.array(part, np.int64).reshape(-1, 2)
            one.update(columns[:, 0], columns[:, 1])
        whole.add(one.part())
    assert whole.text() == by_definition(batches)
