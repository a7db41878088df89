"""What a finished plan must pass before any task starts; and the replay of a plan made earlier."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import (
    ArchivedObjectError,
    InvalidOptionError,
    ObjectChangedError,
    PlanTooLargeError,
)
from kts_source.planning.estimate import ARCHIVE_CLASSES, estimate
from kts_source.planning.plan_json import plan_from_json
from kts_source.planning.pruning import fingerprint

if TYPE_CHECKING:
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectStore

_THREADS: Final = 16
_SHOWN_OBJECTS: Final = 5


def check_plan(plan: ScanPlan, options: ScanOptions, store: ObjectStore) -> None:
    """Refuses a plan that cannot be read, or is larger than the user wants.

    Raises:
        ArchivedObjectError: Objects that must be restored first.
        PlanTooLargeError: Above `maxPlanBytes` or `maxPlanRequests`.
    """
    archived = [ref.key for ref in _objects(plan) if ref.storage_class in ARCHIVE_CLASSES]
    if archived:
        shown = ", ".join(store.uri(key) for key in sorted(archived)[:_SHOWN_OBJECTS])
        raise ArchivedObjectError(
            f"{len(archived)} objects of the plan are archived and must be restored first: {shown}"
        )
    if options.max_plan_bytes is None and options.max_plan_requests is None:
        return
    work = estimate(plan.tasks)
    for name, limit, found in (
        ("maxPlanBytes", options.max_plan_bytes, work.bytes),
        ("maxPlanRequests", options.max_plan_requests, work.requests),
    ):
        if limit is not None and found > limit:
            raise PlanTooLargeError(
                f"the plan needs {work.requests:,} requests for {work.bytes:,} bytes, above"
                f" {name}={limit}; narrow the offsets, timestamps or topics, or raise the limit"
            )


def plan_of_file(options: ScanOptions) -> ScanPlan:
    """The plan in `planFile`, with the columns of the options.

    Raises:
        InvalidOptionError: The file holds no plan, or one made for another `where`.
    """
    import fsspec

    assert options.plan_file is not None
    with fsspec.open(options.plan_file, "rt", encoding="utf-8") as file:
        plan = plan_from_json(file.read())
    if plan.where is not None and plan.where != fingerprint(options.where):
        raise InvalidOptionError(
            f"the plan in {options.plan_file} leaves out what its own 'where' cannot match, and"
            f" the option is another: plan again, or give the same (the plan's: {plan.where})"
        )
    return replace(plan, columns=options.columns)


def check_unchanged(plan: ScanPlan, store: ObjectStore) -> None:
    """Makes sure that the objects of an earlier plan are what they were.

    Raises:
        ObjectNotFoundError: An object has gone.
        ObjectChangedError: An object is not what it was.
    """

    def check(ref: ObjectRef) -> None:
        info = store.head(ref.key)
        if (info.size, info.version) != (ref.size, ref.version):
            raise ObjectChangedError(
                "the object is not what it was when the plan was made", uri=store.uri(ref.key)
            )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="kts-plan") as pool:
        for _ in pool.map(check, _objects(plan)):
            pass


def _objects(plan: ScanPlan) -> list[ObjectRef]:
    """All that the tasks will read: logs, and offset indexes where borders are looked up."""
    parts = [part for task in plan.tasks for part in task.slices]
    logs = dict.fromkeys(part.objects.log for part in parts)
    indexes = dict.fromkeys(part.offset_index.source for part in parts if not part.is_whole)
    return [*logs, *indexes]
