"""The command `kts`, and its parts; `python -m kts_source.cli` is the same."""

from __future__ import annotations

import sys

_NEEDS = ("click", "rich")


def main() -> int:
    """Runs `kts`, or says what to install where the extra `cli` is missing.

    Returns:
        The exit code (`kts_source.cli.app` lists them).
    """
    try:
        from kts_source.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in _NEEDS:
            raise
        print(f"kts needs {error.name}: pip install 'tiered-kafka[cli]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while the libraries are loaded; `run` answers for the rest
        print("interrupted", file=sys.stderr)
        return 130
    return run()
