"""The command `kts`, which can also be run as `python -m kts_source.cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from kts_source.libraries import missing_extra

_NEEDS = ("click", "rich")


def main() -> int:
    """Runs `kts` and returns its exit code. If the extra `cli` is not installed, prints the command
    that installs it.
    """
    for name in _NEEDS:
        if find_spec(name) is None:
            print(missing_extra(name, "cli", "kts"), file=sys.stderr)
            return 2
    try:
        from kts_source.cli.app import main as run
    except KeyboardInterrupt:  # while libraries are loaded; `run` handles it later
        print("interrupted", file=sys.stderr)
        return 130
    return run()
