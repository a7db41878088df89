"""Checks that the error for a wrong or missing key prefix suggests the right prefix, and that few
listings are enough to find it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.cli.app import main
from kts_source.errors import (
    InvalidOptionError,
    KeyPrefixError,
    TieredKafkaError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.planning.segment_catalog import MAX_FOLDERS, likely_prefixes
from kts_source.store.local_store import LocalStore
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, prefix: str, topic: str = "orders", segments: int = 3) -> None:
    builder = LogBuilder()
    for _ in range(segments):
        builder.append([SimpleRecord(b"x")])
        builder.roll()
    writer = AivenTierWriter(str(root), topic=topic, partition=0, key_prefix=prefix)
    for segment in builder.build().segments:
        writer.write_segment(segment)


@pytest.mark.parametrize(
    ("prefix", "wrong_prefix"),
    [
        ("kts-", ""),
        ("kts-", "kts"),
        ("kts-", "wrong-"),
        ("tiered/", ""),
        ("tiered/", "tiered"),
        ("tiered/", "teired/"),
        ("tiered/", "tiered/kts-"),
        ("tiered/kts-", ""),
        ("tiered/kts-", "tiered/"),
        ("a/b/c/", ""),
    ],
)
def test_wrong_key_prefix_error_proposes_right_prefix(
    tmp_path: Path, prefix: str, wrong_prefix: str
) -> None:
    write(tmp_path, prefix)
    options = {"path": str(tmp_path), "subscribe": "orders"}
    assert kts_source.plan({**options, "keyPrefix": prefix}).tasks
    with pytest.raises(TieredKafkaError, match=f"did you mean keyPrefix '{prefix}'") as error:
        kts_source.plan({**options, "keyPrefix": wrong_prefix})
    assert isinstance(error.value, TierNotFoundError | TopicNotFoundError)


def test_subscribe_pattern_with_incomplete_prefix_raises_key_prefix_error(tmp_path: Path) -> None:
    write(tmp_path, "tiered/kts-")
    options = {"path": str(tmp_path), "subscribePattern": ".*", "keyPrefix": "tiered/"}
    for loss in ("true", "false"):
        with pytest.raises(KeyPrefixError, match="did you mean keyPrefix 'tiered/kts-'") as error:
            kts_source.plan({**options, "failOnDataLoss": loss})
        assert error.value.key_prefix == "tiered/kts-"
        assert isinstance(error.value, InvalidOptionError)


@pytest.mark.parametrize("layout", ["aiven", "local-tiered-storage"])
def test_unknown_topic_error_proposes_prefix_only_if_a_topic_exists_under_it(
    tmp_path: Path, layout: str
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"x")])
    for topic in ("orders", "my-missing"):
        writer: AivenTierWriter | LocalTierWriter
        if layout == "aiven":
            writer = AivenTierWriter(str(tmp_path), topic=topic, partition=0, key_prefix="tiered/")
        else:
            writer = LocalTierWriter(str(tmp_path), topic=topic, partition=0)
        writer.write_segment(builder.build().segments[0])
    prefix = "tiered/" if layout == "aiven" else ""
    options = {"path": str(tmp_path), "keyPrefix": prefix, "layout": layout}
    with pytest.raises(TopicNotFoundError, match="no topic 'nope'") as error:
        kts_source.plan({**options, "subscribe": "orders,nope"})
    assert "did you mean" not in str(error.value)
    # Topic my-missing exists, so the error proposes prefix my- for topic missing.
    with pytest.raises(TopicNotFoundError, match=f"did you mean keyPrefix '{prefix}my-'"):
        kts_source.plan({**options, "subscribe": "orders,missing"})


def test_lost_topic_is_skipped_only_without_fail_on_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "tiered/", segments=2)
    options = {"path": str(tmp_path), "keyPrefix": "tiered/"}
    both = {**options, "subscribe": "orders,expired"}
    with pytest.raises(TopicNotFoundError, match=r"no topic 'expired'.*set failOnDataLoss=false"):
        kts_source.plan(both)
    assert not caplog.records
    plan = kts_source.plan({**both, "failOnDataLoss": "false"})
    assert {partition.topic for partition in plan.partitions} == {"orders"}
    assert "no topic 'expired'" in caplog.text
    with pytest.raises(TopicNotFoundError, match="no topic 'expired'") as error:
        kts_source.plan({**options, "subscribe": "expired", "failOnDataLoss": "false"})
    assert "failOnDataLoss" not in str(error.value)


def test_error_about_empty_store_proposes_no_prefix(tmp_path: Path) -> None:
    with pytest.raises(TierNotFoundError) as error:
        kts_source.plan({"path": str(tmp_path), "subscribe": "orders"})
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("layout", ["aiven", "local-tiered-storage"])
def test_key_prefix_search_sends_a_limited_number_of_listings(tmp_path: Path, layout: str) -> None:
    for number in range(50):
        (tmp_path / f"{number}" / "deep").mkdir(parents=True)
    store = LocalStore(tmp_path)
    assert likely_prefixes(store, find_layout(layout), "x", ["orders"]) == ()
    assert store.counters.list_requests <= 3 * MAX_FOLDERS


def test_error_proposes_key_prefix_of_local_tier_in_subfolder(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"x")])
    writer = LocalTierWriter(tmp_path / "kept" / "here", topic="orders", partition=0)
    writer.write_segment(builder.build().segments[0])
    options = {"path": str(tmp_path), "layout": "local-tiered-storage", "subscribe": "orders"}
    with pytest.raises(TierNotFoundError, match="did you mean keyPrefix 'kept/here/'"):
        kts_source.plan(options)


@pytest.mark.parametrize("prefix", ["kts-", "tiered/", "tiered/kts-"])
def test_topics_command_finds_prefix_automatically(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str
) -> None:
    write(tmp_path, prefix, segments=20)
    assert main(["topics", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)
    assert (row["topic"], row["tierEnd"]) == ("orders", 20)
    assert f"found under --key-prefix {prefix}:" in err
    assert len(err.splitlines()) == 1


def test_topics_command_does_not_replace_explicit_or_ambiguous_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a/")
    assert main(["topics", str(tmp_path), "--key-prefix", "b/"]) == 1
    assert "did you mean --key-prefix 'a/'?" in capsys.readouterr().err
    write(tmp_path, "b/")
    assert main(["topics", str(tmp_path)]) == 1
    assert "did you mean --key-prefix 'a/' or 'b/'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "flags", "hint"),
    [
        ("localtier/tier", [], "set --layout local-tiered-storage"),
        ("localtier", [], "set --layout local-tiered-storage and --key-prefix 'tier/'"),
        ("kafka-logs/disk", [], "set --layout kafka-logs"),
        ("kafka-logs/disk", ["--layout", "local-tiered-storage"], "set --layout kafka-logs"),
        ("tier", ["--layout", "kafka-logs"], "set --layout aiven and --key-prefix 'tiered/'"),
        ("tier", ["--key-prefix", "tiere"], "did you mean --key-prefix 'tiered/'?"),
    ],
)
@pytest.mark.parametrize("command", ["topics", "find", "plan"])
def test_wrong_layout_fails_with_error_that_names_the_right_layout(
    path: str, flags: list[str], hint: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"find": ["--key", "a"], "plan": ["--subscribe", "txn"]}.get(command, [])
    assert main([command, str(GOLDEN / path), *flags, *arguments]) == 1
    assert capsys.readouterr().err.endswith(f"{hint}\n")


def test_audit_with_wrong_layout_fails_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(GOLDEN / "localtier/tier")]) == 1
    assert "set --layout local-tiered-storage" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["topics", "segments", "audit", "verify"])
def test_folder_without_a_tier_is_an_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 1
    assert "no tier at" in capsys.readouterr().err
