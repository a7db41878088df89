"""Records the finished steps of a restore, so that a killed restore can be continued.

The journal is the file `<plan>.journal`, a line of JSON per step:

    {"step": "begin", "plan": id, "logDir": folder}
    {"step": "staged", "partition": "orders-0", "end": 4711, "maxProducerId": 9,
     "hasTransactions": true, "files": {name: size}}
    {"step": "placed", "partition": "orders-0"}
    {"step": "refused", "topic": "orders"}        it has a producer id above `MAX_PRODUCER_ID`
    {"step": "written"}                           the checkpoints are updated
    {"step": "checked", "digests": {…}}           the disk has the rows of the tier
    {"step": "published", "maxProducerId": 7}     brokers know the segments that zero copy serves
    {"step": "verified"}                          the brokers have the rows of the disk
    {"step": "committing"}                        from now on, commit changes the new cluster
    {"step": "committed"}                         producers and consumers may start
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kts_source.restore.restore_plan import RestorePlan

MAX_PRODUCER_ID: Final = 100_000_000
"""Highest producer id that a restored log may have. A commit requests every id up to the highest
one from the new cluster, which would take hours for more, and brokers never assign these again.
"""
LEVELS: Final = ("read_uncommitted", "read_committed")
_FILE: Final = re.compile(
    r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)|leader-epoch-checkpoint"
)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # a bool is an int, too


def _is_producer_id(value: object) -> bool:
    return type(value) is int and -1 <= value <= MAX_PRODUCER_ID


def _are_files(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(_FILE.fullmatch(name) and _is_count(size) for name, size in value.items())
        and any(name.endswith(".log") for name in value)
    )


def _are_digests(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {*LEVELS}
        and all(
            isinstance(each, dict) and all(map(_is_text, each.values())) for each in value.values()
        )
    )


_SCHEMA: Final[Mapping[str, Mapping[str, Callable[[object], bool]]]] = {
    "begin": {"plan": _is_text, "logDir": _is_text},
    "staged": {
        "partition": _is_text,
        "end": _is_count,
        "maxProducerId": _is_producer_id,
        "hasTransactions": _is_bool,
        "files": _are_files,
    },
    "placed": {"partition": _is_text},
    "refused": {"topic": _is_text},
    "written": {},
    "checked": {"digests": _are_digests},
    "published": {"maxProducerId": _is_producer_id},
    "verified": {},
    "committing": {},
    "committed": {},
}
"""Checks of the fields of each step."""


def high_producer_id(producer_id: int) -> str:
    """Returns an error text about a producer id above `MAX_PRODUCER_ID`, without its location."""
    return (
        f"producer id {producer_id} is above {MAX_PRODUCER_ID:,}, so that commit would take hours."
        " The producer or the batch may be invalid. Restore the other topics without this one"
    )


def check_not_begun(plan_path: str) -> None:
    """Checks that a new plan can be written to `plan_path`.

    Raises:
        InvalidOptionError: A restore with the plan at this path has begun.
    """
    journal = Path(f"{plan_path}.journal")
    if journal.exists():
        raise InvalidOptionError(
            f"a restore with the plan {plan_path} has begun and needs this plan: choose another"
            f" file, or move {plan_path} and {journal} away if that restore is over"
        )


class Journal:
    """The finished steps of one plan. If the last line has no line feed, a killed process wrote it.
    It is ignored, and `add` removes it.

    Raises:
        InvalidOptionError: The journal cannot be read, or belongs to another plan.
    """

    def __init__(self, plan_path: str, plan: RestorePlan) -> None:
        self.path = Path(f"{plan_path}.journal")
        self._plan_id = plan.plan_id
        self._last_write_step = "published" if plan.zero_copy else "checked"
        try:
            text = self.path.read_bytes() if self.path.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            steps = [
                _checked_step(line, number) for number, line in enumerate(whole.splitlines(), 1)
            ]
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidOptionError(f"journal {self.path} cannot be read: {error}") from None
        self.steps: list[dict[str, Any]] = steps
        # Do not truncate the file here: another process may be writing its last line.
        self._size_to_keep = len(whole) if len(whole) < len(text) else None
        if self.steps and self.steps[0].get("plan") != plan.plan_id:
            raise InvalidOptionError(
                f"journal {self.path} belongs to another plan: move it away if that restore is over"
            )

    def begin(self, log_dir: str) -> None:
        """Records the log directory.

        Raises:
            InvalidOptionError: An earlier attempt used another log directory.
        """
        if not self.steps:
            self.add("begin", plan=self._plan_id, logDir=log_dir)
        elif self.log_dir != log_dir:
            raise InvalidOptionError(
                f"this plan was already written to log directory {self.log_dir}: use it again, or"
                " plan again for another one"
            )

    def add(self, step: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401  # values of JSON
        """Appends a step to the file, syncs the file, and returns the step.

        Raises:
            InvalidOptionError: The journal cannot be written.
        """
        entry = {"step": step, **facts}
        try:
            if self._size_to_keep is not None:
                os.truncate(self.path, self._size_to_keep)
                self._size_to_keep = None
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InvalidOptionError(
                f"journal {self.path} cannot be written: {error}. Remove the cause, such as a full"
                " disk, and run the command again"
            ) from error
        self.steps.append(entry)
        return entry

    def has(self, step: str) -> bool:
        """Returns whether a step of the whole restore is finished."""
        return any(entry["step"] == step for entry in self.steps)

    @property
    def is_complete(self) -> bool:
        """Returns whether the log directory is complete, so that its broker may start."""
        return self.has(self._last_write_step)

    @property
    def max_producer_id(self) -> int:
        """Highest producer id of the old cluster that brokers know; −1 if they know none."""
        return max((entry.get("maxProducerId", -1) for entry in self.steps), default=-1)

    @property
    def log_dir(self) -> str:
        """Log directory of the restore; empty before `begin`."""
        return str(self.steps[0]["logDir"]) if self.steps else ""

    @property
    def refused_topic(self) -> str:
        """Topic in the tier that cannot be restored; empty if no topic was refused."""
        return next((entry["topic"] for entry in self.steps if entry["step"] == "refused"), "")

    def staged(self, partition: str) -> Mapping[str, Any] | None:
        """Returns the step that recorded the files of a partition, or `None`."""
        return self._last_step("staged", partition)

    def staged_step(self, partition: str) -> Mapping[str, Any]:
        """Returns the step that recorded the files of a partition.

        Raises:
            InvalidOptionError: The partition is not written yet.
        """
        staged = self.staged(partition)
        if staged is None:
            raise InvalidOptionError(f"{partition} is not written: run kts restore write first")
        return staged

    def is_placed(self, partition: str) -> bool:
        """Returns whether the files of a partition have their final names."""
        return self._last_step("placed", partition) is not None

    @property
    def digests(self) -> Mapping[str, Mapping[str, str]]:
        """Digests of the restored rows: by isolation level, then by partition."""
        found = [entry["digests"] for entry in self.steps if entry["step"] == "checked"]
        return found[-1] if found else {}

    def _last_step(self, step: str, partition: str) -> dict[str, Any] | None:
        found = [e for e in self.steps if e["step"] == step and e.get("partition") == partition]
        return found[-1] if found else None


def _checked_step(line: bytes, number: int) -> dict[str, Any]:
    """Parses a line of a journal.

    Raises:
        ValueError: The line is not a step, or has a missing, unknown or invalid field.
    """
    entry = json.loads(line)
    if not isinstance(entry, dict) or not isinstance(step := entry.get("step"), str):
        raise ValueError(f"line {number} has no step")
    fields = _SCHEMA.get(step)
    if fields is None:
        raise ValueError(f"line {number} has the unknown step {step!r}")
    wrong = (entry.keys() - {"step"}) ^ fields.keys()
    wrong |= {
        name for name, is_valid in fields.items() if name in entry and not is_valid(entry[name])
    }
    if wrong:
        raise ValueError(
            f"line {number}, step {step}, has missing, unknown or invalid fields:"
            f" {', '.join(sorted(wrong))}. The file was changed by hand; restore its content"
        )
    return entry
