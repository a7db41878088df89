"""Tests the flags of commands: their help, their spelling, and suggestions after a typo."""

from __future__ import annotations

import re

import click
import pytest
from click.shell_completion import ShellComplete

from kts_source.cli.app import all_commands, kts, main
from kts_source.cli.flags import SOURCE_FLAGS, Command, with_flags
from kts_source.export.settings import ExportArguments
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
        ("-o", {"kafka.security.protocol=", "s3.region="}),
    ],
)
def test_shell_completion_suggests_flag_values(flag: str, words: set[str]) -> None:
    completer = ShellComplete(kts, {}, "kts", "_KTS_COMPLETE")
    items = completer.get_completions(["cat", flag], "")
    assert words <= {item.value for item in items}


@pytest.mark.parametrize("arguments", [["cat"], ["cat", "--path"], ["export", "tier", "orders"]])
def test_shell_completes_paths(arguments: list[str]) -> None:
    completer = ShellComplete(kts, {}, "kts", "_KTS_COMPLETE")
    assert [item.type for item in completer.get_completions(arguments, "./t")] == ["file"]


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
        ("raise max_rejected to store these", "raise --max-rejected to store these"),
        ("Set dead_letters=… to store", "Set --dead-letters to store"),
        ("Set export_id='other' to continue", "Set --export-id other to continue"),
        ("Set second_copy=True only if", "Set --second-copy only if"),
        ("with schema_evolution='add'.", "with --schema-evolution add."),
        ("compact=True with follow=True", "--compact with --follow"),
        ("but resume=False does not resume", "but --no-resume does not resume"),
        ("replay=True needs dead_letters=…,", "--replay-dead-letters needs --dead-letters,"),
        ("run kts verify to verify offsets", "run kts verify to verify offsets"),
        ("lake/dead_letters/x is missing", "lake/dead_letters/x is missing"),
        ("my_dead_letters, dead_letters_2", "my_dead_letters, dead_letters_2"),
    ],
)
def test_messages_name_flags_instead_of_options(text: str, shown: str) -> None:
    assert with_flags(text) == shown


def test_arguments_of_an_export_are_replaced_by_its_flags() -> None:
    flags = {flag for each in all_commands()["export"].params for flag in each.opts}
    shown = {name: with_flags(f"{name}=True") for name in ExportArguments.__annotations__}
    without_flag = {name for name, flag in shown.items() if flag not in flags}
    assert without_flag == {"transform", "target_options", "catalog", "writer"}


def test_all_flags_are_listed_in_the_order_of_the_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cat", "--help-all"]) == 0
    text = capsys.readouterr().out
    flags = ["--path", "--subscribe ", "--starting-offsets ", "--storage-options"]
    assert flags == sorted(flags, key=text.index)
    flags = ["--value-schema ", "--value-message", "--value-mode", "--key-format", "--key-mode"]
    assert flags == sorted(flags, key=text.index)


def test_second_topic_asks_for_commas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", "tier", "orders", "payments"]) == 2
    error = "Got unexpected extra argument (payments). Separate topics by commas, without spaces"
    assert error in capsys.readouterr().err


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
