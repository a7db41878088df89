"""Tests `make demo` and `make test` on a machine that has only Python, make and git."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_data import TOPICS, partition_summaries

ROOT = Path(__file__).resolve().parents[1]

# Besides Python, `make demo` may use only these programs of POSIX, bash, make and git.
TOOLS = (
    "bash", "basename", "cat", "chmod", "cp", "cut", "date", "dirname", "env", "expand", "expr",
    "git", "grep", "head", "hostname", "id", "ln", "ls", "make", "mkdir", "mktemp", "mv", "ps",
    "readlink", "realpath", "rm", "sed", "sh", "sleep", "sort", "tail", "touch", "tr", "true",
    "uname", "which",
)  # fmt: skip
# The tests keep only the environment variables of package registries and proxies.
REGISTRY_SETTINGS = ("PIP_", "UV_", "SSL_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXY_SETTINGS = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


def base_python() -> Path:
    """Returns the interpreter that the tests' virtual environment was created from."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """Creates a folder for PATH with links to `TOOLS`, without Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        path = shutil.which(tool)
        if path is not None:
            (folder / tool).symlink_to(Path(path).resolve())
    return folder


def bare_environment(path: Path, home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(REGISTRY_SETTINGS) or name.lower() in PROXY_SETTINGS)
        and name != "UV_CACHE_DIR"
    }
    home.mkdir(exist_ok=True)
    return {**kept, "PATH": str(path), "HOME": str(home), "LANG": "C.UTF-8"}


def clone_repository(folder: Path) -> Path:
    """Clones the committed state, without changes of this work tree."""
    clone = folder / "tiered-kafka"
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)],
        check=True,
        timeout=120,
    )
    return clone


def make(target: str, *arguments: str, cwd: Path, env: dict[str, str]) -> tuple[int, str, str]:
    run = subprocess.run(
        ["make", target, *arguments],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=450,
    )
    return run.returncode, run.stdout, run.stderr


def write_python(folder: Path, version: tuple[int, int, int]) -> None:
    """Creates a `python3` that reports the version `version` but runs the real interpreter."""
    text = ".".join(map(str, version))
    program = folder / "python3"
    program.write_text(
        "#!/usr/bin/env bash\n"
        f'if [ "$1" = --version ]; then echo "Python {text}"; exit; fi\n'
        f'exec {base_python()} -c "import sys; sys.version_info = {(*version, "final", 0)}; '
        'exec(sys.argv[1])" "$2"\n'
    )
    program.chmod(0o755)


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 10, 13), (3, 14, 0)])
def test_unsupported_python_version_is_reported(
    bare_path: Path, tmp_path: Path, version: tuple[int, int, int]
) -> None:
    write_python(bare_path, version)
    env = bare_environment(bare_path, tmp_path / "home")
    venv = tmp_path / "venv"
    code, out, err = make("demo", f"VENV={venv}", cwd=ROOT, env=env)
    assert code != 0
    assert "needs Python 3.11, 3.12 or 3.13" in err
    assert ".".join(map(str, version)) in err
    assert "Traceback" not in out + err
    assert not venv.exists()


def test_missing_python_is_reported(bare_path: Path, tmp_path: Path) -> None:
    env = bare_environment(bare_path, tmp_path / "home")
    code, _, err = make("test", f"VENV={tmp_path / 'venv'}", cwd=ROOT, env=env)
    assert code != 0
    assert "needs Python 3.11, 3.12 or 3.13" in err
    assert "no python3" in err


def test_make_with_python_variable_tries_no_other_interpreter(
    bare_path: Path, tmp_path: Path
) -> None:
    (bare_path / "python3").symlink_to(base_python())
    env = bare_environment(bare_path, tmp_path / "home")
    code, _, err = make("demo", f"VENV={tmp_path / 'venv'}", "PYTHON=python2.7", cwd=ROOT, env=env)
    assert code != 0
    assert "no python2.7" in err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_in_fresh_clone_prints_orders_and_row_counts(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "python3").symlink_to(base_python())
    clone = clone_repository(tmp_path)
    env = bare_environment(bare_path, tmp_path / "home")
    assert shutil.which("java", path=str(bare_path)) is None
    code, out, err = make("demo", cwd=clone, env=env)
    assert code == 0, f"{out}\n{err}"
    assert "Traceback" not in out + err
    assert len(re.findall(r"^ *orders +\d +0 +[\d,]+ +12 ", out, re.MULTILINE)) == 3
    assert re.search(r"[\d,]+ of [\d,]+ orders match", out)
    assert "computed by Spark 4" in out
    assert len(re.findall(r"^ +2021-\d\d  █+ ", out, re.MULTILINE)) == 12
    assert not (clone / ".venv").exists()
    files = (path for path in (clone / ".venv-demo").rglob("*") if path.is_file())
    size = sum(path.lstat().st_size for path in files if not path.is_symlink())
    assert size < 1_200_000_000
    # Each printed command runs as it is printed.
    commands = re.findall(r"^ +(\S+/kts .*)$", out, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr.decode()}"

    code, out, err = make("demo", "DEMO=--all", cwd=clone, env=env)
    assert code == 0, f"{out}\n{err}"

    # The expected counts come from the broker (tests/golden/expected/summary.json).
    for topic in TOPICS:
        partitions = partition_summaries(topic).values()
        uncommitted, committed = (
            sum(partition[f"rows_in_tier_{level}"] for partition in partitions)
            for level in ("read_uncommitted", "read_committed")
        )
        counts = rf"^ *{topic} +{uncommitted:,} +{committed:,} *$"
        assert re.search(counts, out, re.MULTILINE), f"{counts}\n{out}"
    assert re.search(r"[\d,]+ requests", out)
    assert re.search(r"[\d.,]+ [KM]iB", out)
