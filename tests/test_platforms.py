"""Resolves the wheel and its extras against the package lists of Spark platforms in `platforms/`.

Also checks that every documented machine and Python version has wheels of all dependencies. The
first lines of each list name its source, the platform's documentation, and the packages that must
be replaced.
"""

from __future__ import annotations

import os
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
# Packages with compiled code that need wheels. A platform brings its other compiled packages; some
# have no wheels.
COMPILED = (
    "lz4",
    "backports-zstd",
    "google-crc32c",
    "aiohttp",
    "deltalake",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("wheel")]


@dataclass(frozen=True, slots=True)
class Platform:
    """The content of a file in `platforms/`.

    Attributes:
        pythons: Python versions of the platform.
        pins: Pinned packages, such as `numpy==1.26.4`.
        replaced: Names of pinned packages that must be replaced.
    """

    pythons: tuple[str, ...]
    pins: tuple[str, ...]
    replaced: frozenset[str]

    @classmethod
    def of(cls, file: Path) -> Platform:
        text = file.read_text("utf-8")
        for field in ("source: http", "read: 20", "documented: "):
            assert f"# {field}" in text, file
        pythons = re.findall(r"^# python: (.*)$", text, re.MULTILINE)
        pins = tuple(line for line in text.splitlines() if line and not line.startswith("#"))
        assert all("==" in pin for pin in pins)
        replaced = frozenset(re.findall(r"^# replaced: (\S+) \(", text, re.MULTILINE))
        assert replaced <= {pin.partition("==")[0] for pin in pins}
        return cls(tuple(pythons[0].split()), pins, replaced)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # A wheel for all platforms: only its metadata are used.
    subprocess.run(
        [UV, "build", "--wheel", "--quiet", "--out-dir", out, ROOT],
        check=True,
        env={**os.environ, "KTS_WHEEL_TARGET": "any"},
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session", autouse=True)
def uv_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Writes the dependencies of PySpark to the configuration of uv, which would otherwise unpack
    an archive of 450 MB per version to read them.
    """
    file = tmp_path_factory.mktemp("uv") / "uv.toml"
    metadata = 'name = "pyspark"\nrequires-dist = ["py4j>=0.10.9.7,<0.11"]\n'
    file.write_text(f"[[dependency-metadata]]\n{metadata}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UV_CONFIG_FILE", str(file))
        yield


def resolve_wheel(
    wheel: Path,
    extras: tuple[str, ...],
    python: str,
    machine: str,
    folder: Path,
    pins: tuple[str, ...] = (),
    wheels: tuple[str, ...] = (":all:",),
) -> tuple[dict[str, str], str]:
    """Resolves the wheel and its extras with uv.

    Returns the resolved versions by package name, and uv's error output. The versions are empty if
    there is no solution. The packages in `wheels` must have a wheel. PySpark may have only a source
    archive.
    """
    requirements, constraints = folder / "wanted.in", folder / "constraints.txt"
    requirements.write_text(f"tiered-kafka[{','.join(extras)}] @ {wheel.as_uri()}\n")
    constraints.write_text("\n".join(pins))
    run = subprocess.run(
        [
            str(UV), "pip", "compile", "--quiet", "--no-header", "--no-annotate",
            "--python-version", python, "--python-platform", machine,
            *(argument for name in wheels for argument in ("--only-binary", name)),
            "--no-binary", "pyspark",
            "--constraint", str(constraints), str(requirements),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    pinned = re.findall(r"^([a-z0-9-]+)(?:\[\S*\])?==(\S+)", run.stdout, re.MULTILINE)
    return dict(pinned) if run.returncode == 0 else {}, run.stderr


@pytest.mark.parametrize("machine", [X86, ARM])
@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_wheel_resolves_with_pins_of_platform(
    wheel: Path, file: Path, machine: str, tmp_path: Path
) -> None:
    platform = Platform.of(file)
    kept = tuple(pin for pin in platform.pins if pin.partition("==")[0] not in platform.replaced)
    brings_spark = any(pin.startswith("pyspark==") for pin in kept)
    extras = (*EXTRAS, "spark") if brings_spark else EXTRAS
    for python in platform.pythons:
        versions, errors = resolve_wheel(wheel, extras, python, machine, tmp_path, kept, COMPILED)
        assert versions, errors
        # Databricks requires that no other PySpark replaces its own.
        assert ("pyspark" in versions) == brings_spark


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_pin_listed_for_replacement_conflicts_with_the_wheel(
    wheel: Path, file: Path, tmp_path: Path
) -> None:
    platform = Platform.of(file)
    for name in platform.replaced:
        rest = platform.replaced - {name}
        kept = tuple(pin for pin in platform.pins if pin.partition("==")[0] not in rest)
        versions, _ = resolve_wheel(
            wheel, EXTRAS, platform.pythons[0], X86, tmp_path, kept, COMPILED
        )
        assert not versions, f"{name} fits without replacement: remove it from {file.name}"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", [X86, ARM, APPLE, INTEL_MAC])
def test_dependencies_have_wheels_for_machine_and_python(
    wheel: Path, machine: str, python: str, tmp_path: Path
) -> None:
    versions, errors = resolve_wheel(wheel, (*EXTRAS, "jdk", "spark"), python, machine, tmp_path)
    assert versions, errors
    assert int(versions["pyspark"].split(".")[0]) == 4


def test_wheel_without_extras_does_not_require_large_packages(wheel: Path, tmp_path: Path) -> None:
    versions, errors = resolve_wheel(wheel, (), "3.12", X86, tmp_path)
    assert versions, errors
    assert (
        not {"pyspark", "pandas", "tenacity", "pydantic", "click", "protobuf", "numba"}
        & versions.keys()
    )
