"""What a finished plan must pass before any task starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.errors import ArchivedObjectError, PlanTooLargeError
from kts_source.planning.estimate import ARCHIVE_CLASSES, estimate
from kts_source.texts import some

if TYPE_CHECKING:
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectStore


def check_plan(
    plan: ScanPlan, options: ScanOptions, store: ObjectStore, *, archived_too: bool = False
) -> None:
    """Refuses a plan that is larger than the user wants, or cannot be read, unless objects may be
    `archived_too`.

    Raises:
        ArchivedObjectError: Objects that must be restored first.
        PlanTooLargeError: Above `maxPlanBytes` or `maxPlanRequests`.
    """
    archived = [ref.key for ref in objects_read(plan) if ref.storage_class in ARCHIVE_CLASSES]
    if archived and not archived_too:
        shown = some(store.uri(key) for key in sorted(archived))
        raise ArchivedObjectError(
            f"{len(archived)} objects of the plan are archived and must be restored first: {shown}"
        )
    if options.max_plan_bytes is None and options.max_plan_requests is None:
        return
    work = estimate(plan.tasks)
    from_brokers = sum(part.nominal_bytes for task in plan.tasks for part in task.ranges)
    for name, limit, found in (
        ("maxPlanBytes", options.max_plan_bytes, work.bytes + from_brokers),
        ("maxPlanRequests", options.max_plan_requests, work.requests),
    ):
        if limit is not None and found > limit:
            brokers = f" and about {from_brokers:,} bytes from brokers" if from_brokers else ""
            raise PlanTooLargeError(
                f"the plan needs {work.requests:,} requests for {work.bytes:,} bytes{brokers},"
                f" above {name}={limit}; narrow the offsets, timestamps or topics, or raise the"
                " limit"
            )


def objects_read(plan: ScanPlan) -> list[ObjectRef]:
    """All that tasks of a plan will read: logs, and offset indexes where borders are looked up."""
    parts = [part for task in plan.tasks for part in task.slices]
    # A log without a byte may have no object.
    logs = dict.fromkeys(part.objects.log for part in parts if part.objects.size_in_bytes)
    indexes = dict.fromkeys(part.offset_index.source for part in parts if not part.is_whole)
    return [*logs, *indexes]
