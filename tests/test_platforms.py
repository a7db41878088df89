"""The wheel and its extras resolve where people are: against the package lists in `platforms/`, and
with wheels for every machine and Python that the documentation names.

Each list says in its first lines where it comes from, what of it is documented, and which packages
of the platform have to be replaced.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).parent / "uv"
LISTS = sorted((ROOT / "tests" / "platforms").glob("*.txt"))
X86, ARM = "x86_64-manylinux_2_28", "aarch64-manylinux_2_28"
APPLE, INTEL_MAC = "aarch64-apple-darwin", "x86_64-apple-darwin"
EXTRAS = (
    *("cli", "gcs", "azure", "delta", "iceberg", "registry", "plot", "kafka"),
    *("polars", "duckdb"),
)
# A platform has the rest of what is compiled itself, some of it without wheels.
COMPILED = (
    "numba",
    "llvmlite",
    "cramjam",
    "lz4",
    "zstandard",
    "google-crc32c",
    "aiohttp",
    "deltalake",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("wheel")]


@dataclass(frozen=True, slots=True)
class Platform:
    """A list of `platforms/`: its Pythons, its pins, and those of them that must give way."""

    pythons: tuple[str, ...]
    pins: tuple[str, ...]
    replaced: frozenset[str]

    @classmethod
    def of(cls, file: Path) -> Platform:
        text = file.read_text("utf-8")
        for said in ("source: http", "read: 20", "documented: "):
            assert f"# {said}" in text, file
        pythons = re.findall(r"^# python: (.*)$", text, re.MULTILINE)
        pins = tuple(line for line in text.splitlines() if line and not line.startswith("#"))
        assert all("==" in pin for pin in pins)
        replaced = frozenset(re.findall(r"^# replaced: (\S+) \(", text, re.MULTILINE))
        assert replaced <= {pin.partition("==")[0] for pin in pins}
        return cls(tuple(pythons[0].split()), pins, replaced)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([UV, "build", "--wheel", "--quiet", "--out-dir", out, ROOT], check=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session", autouse=True)
def uv_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What PySpark needs, so that uv does not unpack an archive of 450 MB a version to read it."""
    file = tmp_path_factory.mktemp("uv") / "uv.toml"
    needs = 'name = "pyspark"\nrequires-dist = ["py4j>=0.10.9.7,<0.11"]\n'
    file.write_text(f"[[dependency-metadata]]\n{needs}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UV_CONFIG_FILE", str(file))
        yield


def resolved(
    wheel: Path,
    extras: tuple[str, ...],
    python: str,
    machine: str,
    folder: Path,
    pins: tuple[str, ...] = (),
    wheels: tuple[str, ...] = (":all:",),
) -> tuple[dict[str, str], str]:
    """What would be installed, by name, and why nothing would.

    Only wheels count for `wheels`, but for PySpark, which has none.
    """
    wanted, constraints = folder / "wanted.in", folder / "constraints.txt"
    wanted.write_text(f"tiered-kafka[{','.join(extras)}] @ {wheel.as_uri()}\n")
    constraints.write_text("\n".join(pins))
    done = subprocess.run(
        [
            str(UV), "pip", "compile", "--quiet", "--no-header", "--no-annotate",
            "--python-version", python, "--python-platform", machine,
            *(part for name in wheels for part in ("--only-binary", name)),
            "--no-binary", "pyspark",
            "--constraint", str(constraints), str(wanted),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    found = re.findall(r"^([a-z0-9-]+)(?:\[\S*\])?==(\S+)", done.stdout, re.MULTILINE)
    return dict(found) if done.returncode == 0 else {}, done.stderr


@pytest.mark.parametrize("machine", [X86, ARM])
@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_it_fits_what_a_platform_has(wheel: Path, file: Path, machine: str, tmp_path: Path) -> None:
    platform = Platform.of(file)
    kept = tuple(pin for pin in platform.pins if pin.partition("==")[0] not in platform.replaced)
    brings_spark = any(pin.startswith("pyspark==") for pin in kept)
    extras = (*EXTRAS, "spark") if brings_spark else EXTRAS
    for python in platform.pythons:
        found, why = resolved(wheel, extras, python, machine, tmp_path, kept, COMPILED)
        assert found, why
        # Databricks asks that nothing installs another PySpark over its own.
        assert ("pyspark" in found) == brings_spark


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_nothing_is_replaced_without_need(wheel: Path, file: Path, tmp_path: Path) -> None:
    platform = Platform.of(file)
    for name in platform.replaced:
        rest = platform.replaced - {name}
        kept = tuple(pin for pin in platform.pins if pin.partition("==")[0] not in rest)
        found, _ = resolved(wheel, EXTRAS, platform.pythons[0], X86, tmp_path, kept, COMPILED)
        assert not found, f"{name} fits as it is: take it off the list in {file.name}"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", [X86, ARM, APPLE, INTEL_MAC])
def test_there_are_wheels_for_every_machine_and_python(
    wheel: Path, machine: str, python: str, tmp_path: Path
) -> None:
    found, why = resolved(wheel, (*EXTRAS, "jdk", "spark"), python, machine, tmp_path)
    if (machine, python) == (INTEL_MAC, "3.14"):
        assert "numba" in why  # ends with Python 3.13 on Intel Macs
        return
    assert found, why
    assert int(found["pyspark"].split(".")[0]) == 4
    if machine == INTEL_MAC:
        assert found["numba"].startswith("0.62.")


def test_the_core_is_light(wheel: Path, tmp_path: Path) -> None:
    found, why = resolved(wheel, (), "3.12", X86, tmp_path)
    assert found, why
    assert not {"pyspark", "pandas", "tenacity", "pydantic", "click", "protobuf"} & found.keys()
