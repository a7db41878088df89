from __future__ import annotations

import re
from pathlib import Path

import pytest

import segment_format
from tests.segment_format.codec_exceptions import CODEC_EXCEPTIONS

README = (Path(segment_format.__file__).parent / "README.md").read_text(encoding="utf-8")


def test_readme_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "assert" in example

    exec(compile(example, "segment_format/README.md", "exec"), {})


@pytest.mark.parametrize("name", CODEC_EXCEPTIONS)
def test_readme_table_matches_codec_exceptions(name: str) -> None:
    exception = CODEC_EXCEPTIONS[name]
    verdict = {True: "reads", False: "refuses"}
    expected_row = (
        f"| {verdict[exception.kafka_accepts]} | {verdict[exception.accepted]}"
        f" | {exception.reason} |"
    )

    assert README.count(expected_row) == 1
    rows = re.findall(r"^\| (?!zstd: |snappy: ).*", README.split("## Codecs", 1)[1], re.MULTILINE)
    assert len(rows) == len(CODEC_EXCEPTIONS) + 1  # `test_compression` covers the others
