"""Tests the flags of commands: their help, their spelling, and suggestions after a typo."""

from __future__ import annotations

import re

import click
import pytest
from click.shell_completion import ShellComplete

from kts_source.cli.app import all_commands, kts, main
from kts_source.cli.flags import SOURCE_FLAGS, Command, with_flags
from kts_source.options import OPTIONS
from kts_source.options.stream_options import STREAM_OPTIONS

COMMANDS = sorted(name for name, command in all_commands().items() if isinstance(command, Command))


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_help_of_kts_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, "--help")
    assert len(text.splitlines()) <= 40
    assert "..." not in text.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_fits_two_screens_and_names_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(capsys, *name.split(), "--help").splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    codes = [line.split()[0] for line in lines if re.match(r"  \d+ ", line)]
    assert codes == ["0", "1", "2", "3", "4", "130"]
    assert any(line.startswith(f"  kts {name} ") for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_shows_every_option_of_the_source(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(capsys, *name.split(), "--help-all")
    replaced = {"cat": {"--tail"}, "export": {"--catalog"}}.get(name, set())
    flags = {flag for flag in SOURCE_FLAGS if not re.search(rf"{flag}(?![\w-])", text)}
    assert flags <= replaced
    assert "Keys and values:" in text


def test_every_option_that_is_not_for_streams_has_a_flag_in_kebab_case() -> None:
    assert {option.name for option in SOURCE_FLAGS.values()} == {
        option.name for option in OPTIONS
    } - {option.name for option in STREAM_OPTIONS}
    assert all(re.fullmatch(r"--[a-z]+(-[a-z]+)*", flag) for flag in SOURCE_FLAGS)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("--keyPrefix", "did you mean --key-prefix?"),
        ("--value.format", "did you mean --value-format?"),
        ("--startingOffsets", "did you mean --starting-offsets?"),
        ("--maxOffsetsPerTrigger", "did you mean -o maxOffsetsPerTrigger=…?"),
        ("--key-prefx", "--key-prefix"),
    ],
)
def test_wrong_flag_is_refused_with_a_suggestion(
    wrong: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "tier", "orders", wrong, "x"]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--isolation-level", {"read_committed", "read_uncommitted"}),
        ("--layout", {"aiven", "local-tiered-storage", "kafka-logs"}),
        ("--value-format", {"json", "avro-confluent", "protobuf"}),
        ("-o", {"keyPrefix=", "kafka.bootstrap.servers="}),
    ],
)
def test_shell_completion_suggests_flag_values(flag: str, words: set[str]) -> None:
    completer = ShellComplete(kts, {}, "kts", "_KTS_COMPLETE")
    items = completer.get_completions(["cat", flag], "")
    assert words <= {item.value for item in items}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("option 'path' is missing", "option --path is missing"),
        ("set failOnDataLoss=false to skip", "set --no-fail-on-data-loss to skip"),
        ("did you mean keyPrefix 'a/'?", "did you mean --key-prefix 'a/'?"),
        ("did you mean 'columns'?", "did you mean --columns?"),
        ("did you mean 'offset'?", "did you mean 'offset'?"),
        ("set layout=kafka-logs", "set --layout kafka-logs"),
        ("`startingOffsets` and `topic`", "--starting-offsets and `topic`"),
        ("no topic 'where' in the tier", "no topic 'where' in the tier"),
        ("the path is s3://where/columns", "the path is s3://where/columns"),
    ],
)
def test_messages_name_flags_instead_of_options(text: str, shown: str) -> None:
    assert with_flags(text) == shown


def test_boolean_options_are_flags_without_value(capsys: pytest.CaptureFixture[str]) -> None:
    booleans = {
        flag: parameter
        for parameter in all_commands()["plan"].params
        if isinstance(parameter, click.Option) and parameter.is_flag
        for flag in parameter.opts
    }
    assert booleans["--include-headers"].secondary_opts == ["--no-include-headers"]
    assert main(["plan", "tier", "orders", "--include-headers", "true"]) == 2
    assert "unexpected extra argument" in capsys.readouterr().err


def test_misspelled_option_suggests_only_similar_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", "tier", "orders", "-o", "colums=key"]) == 2
    assert capsys.readouterr().err == "kts: unknown option 'colums'; did you mean --columns?\n"


def test_option_without_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "tier", "orders", "-o", "layout"]) == 2
    assert "use -o NAME=VALUE" in capsys.readouterr().err
