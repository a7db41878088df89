"""Contains assertions about the results of the examples in the docs.

`CHECKS` maps the name of each page to its assertions. Tests evaluate them after the examples of the
page ran. They are not part of the page, because users do not need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "backfill.md": (
        "report.rows == 3600",
        "again.rows == 0",
        "{span.topic for span in events.ranges} == {'orders', 'payments'}",
        "(values.rows, values.rejected) == (3600, 0)",
        "slim.rows == 3600",
        "local.rows == 450 and local.files > 27",
        "(latest.rows_read, latest.rows) == (3600, 395)",
        """starting == '{"orders": {"0": 880, "1": 1352, "2": 1368}}'""",
        "checked.verified[0].startswith('verified 3,600 rows of 3 partitions')",
    ),
    "README.md": ("orders.count() == 3600", "report.rows == 7200 and report.files < 10"),
    "logs.md": (
        "(report.rows, report.rejected, report.malformed, report.skipped) == (3600, 0, 0, ())",
        "report.freshness.startswith('the newest record of the tier is ')",
        "{'planning', 'fetching', 'compiling', 'decoding', 'writing', 'committing'}"
        " <= report.seconds.keys()",
        "summary.total['rows'] == 3600",
    ),
    "operations.md": (
        "(first.rows, first.rejected, first.skipped) == (260, 0, ())",
        "second.rows == 0 and second.freshness",
        "check.dry_run and (check.rows, check.rows_read, check.rejected) == (0, 260, 0)",
        "'kts_export_success{target=\"lake/cron\"} 1' in figures",
        "'kts_export_newest_record_timestamp_seconds' in figures",
        "type(failure).__name__ == 'RejectedRowsError' and not failure.retriable",
        "(corrected.rows, replayed.replayed, evolved.rows, opened.rows) == (260, 0, 0, 30)",
        "\"key id 'key1'\" in missing",
    ),
    "backfill-reference.md": ("table.num_rows == 3600",),
    "audit.md": (
        "not report.errors",
        "[served.records for served in report.partitions] == [880, 1352, 1368]",
        "metadata.level == 'metadata' and not metadata.errors",
    ),
    "engines.md": (
        "(orders.count(), table.num_rows, len(frame)) == (3600, 3600, 3600)",
        "few['offset'].to_pylist() == [20, 21, 22, 23, 24]",
    ),
    "find.md": (
        "table.num_rows == 268",
        "certificate.complete and certificate.exhaustive",
        "indexed.num_rows == 138",
    ),
    "compatibility.md": ("again.tasks == plan(tier).tasks",),
    "encryption.md": ("cards.tier_end == 30", "describe(tier).partitions == (cards,)"),
    "exactness.md": ("payments.tier_end == 112", "payments.last_stable_offset == 102"),
    "getting-started.md": (
        "few.columns == ['offset', 'value']",
        "(day.count(), df.count()) == (5, 3600)",
    ),
    "quickstart.md": (
        "one.count() == 5",
        "len(of_customer.to_table()) == 5",
        "[(name, round(total, 2)) for name, total in by_customer.head(3).rows()]"
        " == [('c000', 23066.18), ('c001', 6366.56), ('c002', 3824.44)]",
        "spent.first()['customer'] == by_customer['customer'][0]",
    ),
    "security.md": ("str(secret) == '***'",),
    "segment-format.md": (
        "table.to_pydict() == {'offset': [40, 41], 'key': [b'a', None], 'value': [b'hello', None]}",
    ),
    "stores.md": (
        "describe({**tier, **keys}) == describe(tier)",
        "describe({**tier, **own}) == describe(tier)",
        "describe(local) == describe(tier)",
        "describe(presigned) == describe(tier)",
        "describe(mirrored) == describe(tier)",
        "describe(cached) == describe(tier)",
    ),
    "streaming.md": ("copied.count() == 3600", "again.exception() is None", "rest.count() == 0"),
    "where.md": ("plan(zoned).tasks",),
}
"""Name of a page -> expressions that are true in its namespace after its last example."""
