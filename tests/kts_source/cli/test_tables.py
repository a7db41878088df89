"""Tests how tables, sizes and byte strings are printed."""

from __future__ import annotations

import pytest

from kts_source.cli.output import print_table
from kts_source.texts import counted, format_bytes, preview_bytes


def test_table_aligns_numbers_right_and_text_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("topic", "rows"), [("orders", 1234567), ("a", 5)])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [" topic        rows", " orders  1,234,567", " a               5"]


def test_table_does_not_interpret_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("value",), [("[red]x[/red] :smile:",)])
    assert "[red]x[/red] :smile:" in capsys.readouterr().out


def test_table_without_rows_has_only_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "bc"), [])
    assert capsys.readouterr().out.split() == ["a", "bc"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes_use_powers_of_1024(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (b"", ""),
        (b"key-1", "key-1"),
        ("заголовок".encode(), "заголовок"),
        (b"0123456789abc", "01234567…"),
        (b"\x83\x02", "0x8302"),
        (b"a\nb", "0x610a62"),
        (bytes(range(100)), "0x000102…"),
    ],
)
def test_bytes_are_shown_as_text_or_hexadecimal(value: bytes | None, text: str) -> None:
    shown = preview_bytes(value, 9)
    assert shown == text
    assert len(shown) <= 9


def test_number_has_its_noun_in_singular_or_plural() -> None:
    assert [counted(count, "hole") for count in (0, 1, 2)] == ["0 holes", "1 hole", "2 holes"]
    assert counted(1000, "hole") == "1,000 holes"
