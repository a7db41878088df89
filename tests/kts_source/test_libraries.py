"""Tests the errors for missing packages and the command that installs them."""

from __future__ import annotations

import json
import pickle
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from kts_source.errors import InvalidOptionError, MissingExtraError
from kts_source.libraries import install_command, require

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (
            {"url": "file:///data/my%20code", "dir_info": {"editable": True}},
            "pip install -e '/data/my code[cli]'",
        ),
        ({"url": "file:///data/code", "dir_info": {}}, "pip install '/data/code[cli]'"),
        (
            {"url": "file:///w/tiered_kafka-1.0.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/w/tiered_kafka-1.0.0-py3-none-any.whl[cli]'",
        ),
        (
            {"url": "https://user:secret@host/x.whl", "archive_info": {}},
            "pip install 'tiered-kafka[cli] @ https://***@host/x.whl'",
        ),
        (None, "pip install 'tiered-kafka[cli]'"),
        ([], "pip install 'tiered-kafka[cli]'"),
    ],
    ids=["editable", "checkout", "wheel", "url", "index", "malformed"],
)
def test_install_command_names_the_source_of_this_package(
    record: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if record is None else json.dumps(record)
    distribution = SimpleNamespace(read_text=lambda _name: text)
    monkeypatch.setattr(metadata, "distribution", lambda _name: distribution)
    assert install_command("cli") == command
    assert len(shlex.split(command)) == 3 + ("-e" in command)


def test_install_command_without_an_installation_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_name: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", fail)
    assert install_command("cli") == "pip install 'tiered-kafka[cli]'"


def test_missing_library_is_an_import_error_and_no_invalid_option() -> None:
    with pytest.raises(MissingExtraError, match=r"to_x\(\) needs no_such_library\. ") as caught:
        require("no_such_library", "polars", "to_x()")
    error = caught.value
    assert isinstance(error, ImportError)
    assert not isinstance(error, InvalidOptionError)
    assert not error.retriable
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("name", ["register", "TieredKafkaDataSource"])
def test_spark_names_without_pyspark_say_what_to_install(name: str) -> None:
    program = f"import sys; sys.modules['pyspark'] = None; from kts_source import {name}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kts_source.errors.MissingExtraError: ")
    assert "needs pyspark. Install it with: pip install " in last
    assert last.endswith("[spark]'")
