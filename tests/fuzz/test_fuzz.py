"""Tests that every parser returns a value or raises a format error, whatever bytes it reads.

`KTS_FUZZ_SECONDS` is the time in seconds for all targets together; the default is 120.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.mutate import Mutator
from tests.fuzz.runner import Engine, has_coverage, run_target, shares
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import PARSERS, Target, target_named, targets

if TYPE_CHECKING:
    from pathlib import Path

COMPILED = ("kernels", "kernel-payloads", "kernel-columns")
NAMES = [*(target.name for target in PARSERS), *COMPILED]
TOTAL_SECONDS = float(os.environ.get("KTS_FUZZ_SECONDS", "120"))


def test_list_of_fuzz_targets_is_complete() -> None:
    assert [target.name for target in targets()] == NAMES
    assert [target.name for target in targets() if target.compiled] == list(COMPILED)


@pytest.mark.parametrize("target", PARSERS, ids=lambda target: target.name)
def test_parsers_return_value_or_format_error_for_seeds_and_mutations(target: Target) -> None:
    inputs = seeds(target.name)
    outcomes = {target.run(data).partition(":")[0] for data in inputs}
    assert "value" in outcomes
    mutator = Mutator(inputs, random.Random(1))
    for _ in range(200):
        mutator.learn(b"", target.run(mutator.mutated()))
    assert mutator.corpus_size > len(inputs)


@pytest.mark.parametrize("name", COMPILED)
def test_each_kernel_decodes_at_least_one_seed_input(name: str) -> None:
    target = target_named(name)
    assert "value" in {target.run(data) for data in seeds(name)}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ["mutation", "coverage"])
def test_random_inputs_never_make_a_target_fail(name: str, engine: Engine, tmp_path: Path) -> None:
    if engine == "coverage" and not has_coverage():
        pytest.skip("atheris has no wheel for this platform; mutations without coverage ran")
    seed = random.SystemRandom().randrange(1 << 31)
    share = shares(targets(), TOTAL_SECONDS / 2)[name]
    result = run_target(name, engine, seconds=share, seed=seed, folder=tmp_path)
    assert result.failure is None, result.text
    assert result.inputs > len(seeds(name))
    print(result)  # noqa: T201  # counts, shown by pytest -rP


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken-error", "KeyError"),
        ("broken-crash", "code -11"),
        ("broken-memory", "MiB of memory"),
        ("broken-hang", "took more than 4 s"),
        ("broken-slow", "s of CPU time"),
        ("broken-position", "position"),
    ],
)
@pytest.mark.parametrize("engine", ["mutation", "coverage"])
def test_input_that_makes_broken_target_fail_is_reported_and_saved(
    name: str, message: str, engine: Engine, tmp_path: Path
) -> None:
    if engine == "coverage" and not has_coverage():
        pytest.skip("atheris has no wheel for this platform")
    wait = 4 if name == "broken-hang" else 60
    result = run_target(name, engine, seconds=30, seed=3, folder=tmp_path, hang_seconds=wait)
    assert result.failure is not None
    assert message in result.text
    data = result.failure.read_bytes()
    assert data[:1] == b"\x17" if name == "broken-error" else len(data) > 20
