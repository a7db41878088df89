"""Runs Kafka's DumpLogSegments on many files in one JVM and parses what it prints."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.integration.kafka_jars import KAFKA_VERSION, kafka_class_path, release_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Linux allows at most 128 KiB per argument, and all file names are one argument.
_MAX_NAMES_BYTES = 100_000
_FIELD = re.compile(r"(\w+): (OptionalLong\.empty|OptionalLong\[-?\d+\]|\[[^\]]*\]|[^ ]*)")

Fields = dict[str, str]


@dataclass(slots=True)
class DumpedBatch:
    """Fields of a log entry (a batch), and fields of each of its records."""

    fields: Fields
    records: list[Fields] = field(default_factory=list)


@dataclass(slots=True)
class Dump:
    """Output of the tool.

    Attributes:
        lines: Lines of standard output by file. File paths are relative to the folder that was
            passed to `dump_log_segments`.
        complaints: Lines of the standard error stream.
    """

    lines: dict[str, list[str]]
    complaints: list[str]

    def batches(self, file: str) -> list[DumpedBatch]:
        """Returns the batches that the tool printed for a `.log` file."""
        batches: list[DumpedBatch] = []
        for line in self.lines[file]:
            if line.startswith("| "):
                batches[-1].records.append(fields_of(line))
            elif not line.startswith("Log starting offset"):
                batches.append(DumpedBatch(fields_of(line)))
        return batches

    def entries(self, file: str) -> list[Fields]:
        """Returns the entries that the tool printed for an index, a snapshot or a checkpoint."""
        return [fields_of(line) for line in self.lines[file]]


def fields_of(line: str) -> Fields:
    """Parses the `name: value` pairs of a line; values contain no blanks."""
    return dict(_FIELD.findall(line))


def dump_log_segments(
    folder: Path, files: Iterable[str], *options: str, version: str = KAFKA_VERSION
) -> Dump:
    """Runs DumpLogSegments on files with the tool's `options`, such as `--print-data-log`. File
    paths are relative to `folder`; file names must be those that brokers choose.
    """
    # Kafka 4.4 moved the tool.
    package = "kafka.tools" if release_of(version) < (4, 4) else "org.apache.kafka.tools"
    tool = f"{package}.DumpLogSegments"
    class_path = kafka_class_path(version)
    lines: dict[str, list[str]] = {}
    complaints: list[str] = []
    for names in _portions(files):
        run = subprocess.run(
            [
                *("java", "-Xmx512m", "-cp", class_path, tool),
                *options,
                *("--files", ",".join(names)),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"DumpLogSegments failed:\n{run.stderr[-4000:]}")
        current: list[str] = []
        for line in run.stdout.splitlines():
            if line.startswith("Dumping "):
                current = lines.setdefault(line.removeprefix("Dumping "), [])
            elif line:
                current.append(line)
        complaints += [
            line for line in run.stderr.splitlines() if "StatusLogger" not in line and line
        ]
    return Dump(lines, complaints)


def _portions(files: Iterable[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    size = 0
    for name in files:
        size += len(name) + 1
        if size > _MAX_NAMES_BYTES:
            yield portion
            portion, size = [], len(name) + 1
        portion.append(name)
    yield portion
