"""Tests that server programs are built once for all pytest workers and use separate ports."""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING

import pytest

from tests import servers

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "example.com/cmd/served-tool@v1.0.0"
# Writes the program slowly and in two halves, like an installer. The first run fails.
INSTALLER = """#!{python}
import os, pathlib, time
here = pathlib.Path(__file__).parent
folder = pathlib.Path(os.environ["GOBIN"])
with open(here / "runs", "a") as runs:
    runs.write("run\\n")
if len((here / "runs").read_text().split()) == 1:
    raise SystemExit("registry does not answer")
folder.mkdir(exist_ok=True)
with open(folder / "served-tool", "w") as program:
    program.write("first half, ")
    program.flush()
    time.sleep(0.5)
    program.write("second half")
"""


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts an installer named `go` on PATH; returns its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "go").write_text(INSTALLER.format(python=sys.executable))
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(servers, "BUILD", tmp_path / "build")
    monkeypatch.setattr(servers, "_RETRY_SECONDS", 0)
    return folder


def _build(_number: int) -> str:
    return servers.go_program(MODULE).read_text()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_go_program_that_two_workers_request_is_built_once(installer: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        texts = pool.map_async(_build, range(2), chunksize=1).get(60)
    assert texts == ["first half, second half"] * 2
    assert len((installer / "runs").read_text().split()) == 2, "one failure, one build"


def test_failed_installation_of_go_program_raises_and_leaves_no_file(
    installer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_INSTALL_ATTEMPTS", 1)
    with pytest.raises(AssertionError, match="registry does not answer"):
        servers.go_program(MODULE)
    assert list((tmp_path / "build" / "go").iterdir()) == []
    assert servers.go_program(MODULE).read_text() == "first half, second half"


def test_server_that_exits_at_start_raises_error_with_its_output() -> None:
    port = servers.free_port()
    with (
        pytest.raises(AssertionError, match="ended with 3") as caught,
        servers.running([sys.executable, "-c", "print('no licence'); exit(3)"], port),
    ):
        pass
    assert "no licence" in str(caught.value)


def test_free_ports_of_two_workers_are_disjoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    chosen: list[set[int]] = []
    for worker in ("gw0", "gw1"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        chosen.append(set(servers.free_ports(200)))
    assert [len(ports) for ports in chosen] == [200, 200]
    assert not chosen[0] & chosen[1]
