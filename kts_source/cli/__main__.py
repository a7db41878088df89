"""Runs `kts` for `python -m kts_source.cli`."""

import sys

from kts_source.cli import main

sys.exit(main())
