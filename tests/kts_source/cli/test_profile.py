"""Tests options from profiles and environment variables, and which value is used if both set an
option.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source.cli.app import main
from kts_source.cli.scan_options import profile_names, with_defaults
from kts_source.errors import InvalidOptionError
from tests.golden_data import TIER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of the configuration file, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tiered-kafka").mkdir()
    return tmp_path / "tiered-kafka" / "config.toml"


def test_flags_override_environment_and_environment_overrides_profile(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('[default]\npath = "p"\nkey-prefix = "p/"\nlayout = "aiven"\n')
    monkeypatch.setenv("KTS_KEY_PREFIX", "e/")
    monkeypatch.setenv("KTS_LAYOUT", "kafka-logs")
    assert with_defaults({"layout": "local-tiered-storage"}, None) == {
        "path": "p",
        "keyPrefix": "e/",
        "layout": "local-tiered-storage",
    }


def test_profile_accepts_names_of_flags_and_of_options_with_dots(config: Path) -> None:
    config.write_text(
        '[test]\npath = ["a", "b"]\ninclude-headers = true\nprefetch-bytes = 5\n'
        's3.region = "r"\nbootstrap-servers = "h:1"\nvalue-format = "json"\n"cacheDir" = "c"\n'
    )
    assert with_defaults({}, "test") == {
        "path": "a,b",
        "includeHeaders": "true",
        "prefetchBytes": "5",
        "s3.region": "r",
        "kafka.bootstrap.servers": "h:1",
        "value.format": "json",
        "cacheDir": "c",
    }
    assert profile_names() == ["test"]


def test_profile_flag_overrides_environment_variable_and_default_profile(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_defaults({}, None) == {}
    config.write_text('[default]\npath = "d"\n[a]\npath = "a"\n[b]\npath = "b"\n')
    assert with_defaults({}, None) == {"path": "d"}
    monkeypatch.setenv("KTS_PROFILE", "a")
    assert with_defaults({}, None) == {"path": "a"}
    assert with_defaults({}, "b") == {"path": "b"}
    with pytest.raises(InvalidOptionError, match=r"'c' does not exist.*default, a, b"):
        with_defaults({}, "c")


def test_option_replaces_other_options_with_the_same_purpose(config: Path) -> None:
    config.write_text('[default]\nsubscribe = "orders"\nstarting-timestamp = 5\n')
    options = {"assign": '{"a":[0]}', "startingOffsets": "earliest"}
    assert with_defaults(options, None) == options


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[default]\nsecret = hunter2\n", r"not valid TOML \(at line 2, column 10\)"),
        ("\udcff", "not valid TOML"),
        ('path = "x"', r"'path' is outside of a profile"),
        ('[default]\nkey-prefx = "x"', "did you mean key-prefix"),
        ("[default]\npath = 1.5", "'path' must be a text"),
    ],
)
def test_invalid_profile_is_refused_with_its_position(config: Path, text: str, match: str) -> None:
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidOptionError, match=match):
        with_defaults({}, None)


@pytest.mark.parametrize(
    "line",
    [
        's3.secret-access-key = "hunter2"',
        'kafka.sasl.jaas.config = "hunter2"',
        'value-schema-registry-basic-auth-user-info = "hunter2"',
        'storage-options = \'{"key":"hunter2"}\'',
    ],
)
def test_credentials_that_others_can_read_are_refused_without_showing_them(
    config: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"[default]\n{line}\n")
    config.chmod(0o640)
    assert main(["topics", str(TIER)]) == 2
    err = capsys.readouterr().err
    assert f"run chmod 600 {config}" in err
    assert "hunter2" not in err
    config.chmod(0o600)
    assert "hunter2" in str(with_defaults({}, None))


def test_single_argument_is_the_topic_if_the_path_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KTS_PATH", str(TIER))
    monkeypatch.setenv("KTS_KEY_PREFIX", "tiered/")
    assert main(["cat", "codecs", "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topic"] == "codecs"
    assert main(["cat", str(TIER), "wide", "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topic"] == "wide"
    assert main(["cat", "./missing", "--subscribe", "codecs"]) == 1
    assert "missing" in capsys.readouterr().err


def test_flag_of_a_command_in_a_profile_is_refused_with_the_valid_settings(config: Path) -> None:
    config.write_text("[default]\nzzz = 3\n")
    with pytest.raises(InvalidOptionError, match=r"'zzz'\. Profiles set options"):
        with_defaults({}, None)


def test_error_of_an_option_names_the_environment_or_the_profile_that_sets_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["topics", str(TIER), "--key-prefix", "tiered/"]
    config.write_text('[default]\nwhere = "x = 1"\n')
    assert main(command) == 2
    assert capsys.readouterr().err.endswith(f". The profile in {config} sets it\n")
    monkeypatch.setenv("KTS_WHERE", "y = 1")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("kts: option --where: y is not a column")
    assert error.endswith(". KTS_WHERE in the environment sets it\n")
    assert main([*command, "--where", "z = 1"]) == 2
    assert "sets it" not in capsys.readouterr().err
