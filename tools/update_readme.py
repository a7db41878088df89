"""Renews the options table of the README from the options themselves."""

from __future__ import annotations

import re
from pathlib import Path

from kts_source.options import options_table

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- options:begin -->\n).*?(<!-- options:end -->)", re.DOTALL)


def main() -> None:
    """Rewrites README.md in place."""
    table = options_table()
    text, count = BLOCK.subn(lambda marks: f"{marks[1]}{table}\n{marks[2]}", README.read_text())
    if count != 1:
        raise SystemExit("README.md has lost its options:begin and options:end marks")
    README.write_text(text)


if __name__ == "__main__":
    main()
