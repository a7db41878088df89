"""`python -m kts_source.cli` is `kts`."""

import sys

from kts_source.cli import main

sys.exit(main())
