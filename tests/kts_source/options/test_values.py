"""Tests that options accept Python values, and that errors name the option without its value."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.options import option_texts, parse_options
from kts_source.options.selection import Assign, OffsetsBound, Subscribe, TimestampBound
from tests.golden_data import TIER, tier_options

if TYPE_CHECKING:
    from kts_source.options import OptionValue

BASE: dict[str, OptionValue] = {"path": Path("/tier"), "subscribe": "orders"}
TEN = datetime(2026, 2, 25, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text ", "text "),
        (True, "true"),
        (False, "false"),
        (-5, "-5"),
        (Path("/tmp/tier"), "/tmp/tier"),
        (date(2026, 2, 25), "2026-02-25"),
        (datetime(2026, 2, 25, 10), "2026-02-25T10:00:00.000000"),
        (TEN.astimezone(timezone(timedelta(hours=2))), "2026-02-25T10:00:00.000000+00:00"),
        (["a", Path("b"), 3], "a,b,3"),
        (("", TEN), ",2026-02-25T10:00:00.000000+00:00"),
        ({"orders": [0, 1]}, '{"orders": [0, 1]}'),
        ({"orders": {0: date(2026, 2, 25)}}, '{"orders": {"0": "2026-02-25"}}'),
        ({"file": Path("/key"), "retries": 2.5, "user": None},
         '{"file": "/key", "retries": 2.5, "user": null}'),
    ],
)  # fmt: skip
def test_python_value_is_converted_to_option_text(value: OptionValue, text: str) -> None:
    assert option_texts({"someOption": value}) == {"someOption": text}


@pytest.mark.parametrize(
    "value",
    [None, 1.5, b"s3cr3t", object(), [None], [["a"]], ["a,b"], {"a": b"s3cr3t"},
     {"a": float("nan")}],
)  # fmt: skip
def test_value_of_unsupported_python_type_raises_invalid_option_error(value: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidOptionError, match="option 'startingOffsets'") as error:
        parse_options({**BASE, "startingOffsets": value})
    assert "s3cr3t" not in str(error.value)


def test_option_name_that_is_not_a_text_raises_invalid_option_error() -> None:
    wrong: Any = {5: "a"}
    with pytest.raises(InvalidOptionError, match=r"name of an option.*int"):
        parse_options(wrong)


def test_python_values_of_options_are_parsed() -> None:
    options = parse_options(
        {
            "path": Path("/tier"),
            "assign": {"orders": [1, 0]},
            "startingOffsets": {"orders": {0: 5, 1: -2}},
            "endingTimestamp": TEN,
            "columns": ["offset", "value"],
            "checkCrcs": False,
            "maxConcurrentRequests": 3,
        }
    )
    assert options.path == "/tier"
    assert options.selection == Assign({"orders": (0, 1)})
    empty = parse_options({"path": "/tier", "assign": {"orders": [1], "clicks": []}})
    assert empty.selection == Assign({"orders": (1,)})
    assert options.starting == OffsetsBound({"orders": {0: 5, 1: -2}})
    assert options.ending == TimestampBound(1772013600000)
    assert options.columns == ("offset", "value")
    assert (options.check_crcs, options.max_concurrent_requests) == (False, 3)
    assert parse_options({**BASE, "subscribe": ["a", "b"]}).selection == Subscribe(("a", "b"))


def test_path_with_keyword_options_equals_dict_of_options() -> None:
    given = tier_options("txn", columns="offset,partition")
    keywords: dict[str, Any] = {name: text for name, text in given.items() if name != "path"}
    scan = kts_source.scan(TIER, **keywords)
    assert scan.columns == ("offset", "partition")
    assert scan.plan.partitions == kts_source.plan(given).partitions
    assert kts_source.plan(str(TIER), **keywords) == kts_source.plan(given)
    assert kts_source.describe(TIER, **keywords) == kts_source.describe(given)
    assert kts_source.describe(given, maxAttempts=2) == kts_source.describe(given)
    pages = [kts_source.report(TIER, now_ms=5, **keywords), kts_source.report(given, now_ms=5)]
    assert pages[0].to_html() == pages[1].to_html()


@pytest.mark.parametrize("name", ["subscribe", "SUBSCRIBE"])
def test_option_that_is_set_twice_raises_invalid_option_error(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"'{name}' is set twice"):
        kts_source.scan({"path": "/t", "subscribe": "orders"}, **{name: "other"})
