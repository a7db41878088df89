"""What a user may ask for: the options of one `load()`, checked before any I/O."""

from kts_source.options.option import Option
from kts_source.options.option_table import (
    OPTIONS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    options_tables,
)
from kts_source.options.scan_options import ScanOptions, parse_options

__all__ = [
    "OPTIONS",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Option",
    "ScanOptions",
    "options_tables",
    "parse_options",
]
