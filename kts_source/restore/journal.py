"""Records the finished steps of a restore, so that a killed restore can be continued.

The journal is the file `<plan>.journal`, a line of JSON per step:

    {"step": "begin", "plan": id, "logDir": folder}
    {"step": "staged", "partition": "orders-0", "end": 4711, "maxProducerId": 9,
     "hasTransactions": true, "files": {name: size}}
    {"step": "placed", "partition": "orders-0"}
    {"step": "written"}                           the checkpoints are updated
    {"step": "checked", "digests": {…}}           the disk has the rows of the tier
    {"step": "published", "maxProducerId": 7}     brokers know the segments that zero copy serves
    {"step": "verified"}                          the brokers have the rows of the disk
    {"step": "committed"}                         producers and consumers may start
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.restore.restore_plan import RestorePlan


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
            steps = [dict(json.loads(line)) for line in whole.splitlines()]
        except (OSError, ValueError, TypeError) as error:
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
