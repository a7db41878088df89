"""`python -m kts_source.options` prints the options table of the README."""

from kts_source.options.option_table import options_table

print(options_table())  # noqa: T201 - this is what the module does
