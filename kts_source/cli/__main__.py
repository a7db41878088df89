"""`python -m kts_source.cli` is `kts`."""

import sys

from kts_source.cli.app import main

sys.exit(main())
