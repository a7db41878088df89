"""Parses and checks the options of one `load()`, before the tier or brokers are read."""

from kts_source.options.option_table import OPTIONS, READ_COMMITTED, READ_UNCOMMITTED
from kts_source.options.parsing import Option, Options, OptionValue, PathOrOptions, option_texts
from kts_source.options.scan_options import (
    ScanOptions,
    check_for_batch,
    check_for_stream,
    options_of,
    parse_any_options,
    parse_options,
)

__all__ = [
    "OPTIONS",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Option",
    "OptionValue",
    "Options",
    "PathOrOptions",
    "ScanOptions",
    "check_for_batch",
    "check_for_stream",
    "option_texts",
    "options_of",
    "parse_any_options",
    "parse_options",
]
