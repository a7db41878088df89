"""Iceberg tables: files and ranges in one commit of the catalog.

Table properties hold the ranges, `kts.<export>.<topic id>.<partition>` = `start:stop`, the newest
timestamps of a compacted table, `kts.<export>.<topic id>.<partition>.newest`, the rules,
`kts.<export>.rules.<name>`, and the list of dead letters of the last commit with such,
`kts.<export>.letters`; expiring snapshots does not touch them. They are set in the transaction
that adds the files. Every commit adds a snapshot, even an empty one, and requires of the catalog
that the snapshot, schema and partitioning that were compared are still the newest, so nothing can
come between.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kts_source.errors import CommitConflictError, ExportError, InvalidOptionError
from kts_source.export.fingerprint import check_fingerprint
from kts_source.export.partitioning import partition_rule
from kts_source.export.ranges import OffsetRange, PartitionKey, advanced
from kts_source.export.tables.export_table import (
    BaseFile,
    Commit,
    TableState,
    WritePlace,
    check_base,
    check_signs,
)
from kts_source.export.tables.iceberg_checks import PinnedCatalog, check_table
from kts_source.export.tables.open_target import open_target
from kts_source.export.tables.target_store import both_listed
from kts_source.export.transforms.dead_letters import publish_dead_letters
from kts_source.quiet import errors_only
from kts_source.secret import scrub

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetObject, TargetStore

_COMMIT_ATTEMPTS: Final = 20
_NO_RETRIES: Final = "commit.retry.num-retries"
_METRICS: Final = "write.metadata.metrics.column."
T = TypeVar("T")

_RANGE = re.compile(r"(?P<start>\d+):(?P<stop>\d+)")


class IcebergExportTable:
    """See the module's text."""

    def __init__(self, settings: ExportSettings) -> None:
        self._settings = settings
        self._opened: Catalog | None = None
        self._target: TargetStore | None = None
        if "." not in settings.target:
            raise InvalidOptionError(
                f"an Iceberg target is a table's name, namespace.table, not {settings.target!r}"
            )

    def load(self) -> TableState:
        """See `ExportTable.load`. Nothing is ever half-done here."""
        table = self._table()
        if table is None:
            return TableState({}, {})
        state = self._state(table)
        # Before the table's own partitioning: of an export that has begun, this says more.
        rule = {"partitionBy": partition_rule(self._settings.partition_by)}
        check_fingerprint(state.fingerprint, rule)
        check_table(table, self._settings.partition_by, self._settings.target)
        return state

    def place(self, run_id: str) -> WritePlace:
        """See `ExportTable.place`: below the table's own location."""
        return WritePlace(
            self._location(),
            self._settings.storage,
            f"{self._prefix}{run_id}-",
            ".parquet",
            "file",
        )

    def base_files(self) -> tuple[BaseFile, ...]:
        """See `ExportTable.base_files`."""
        table = self._table()
        return () if table is None else _files(table)

    def commit(self, commit: Commit) -> bool:
        """See `ExportTable.commit`."""
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_COMMIT_ATTEMPTS):
            table = self._table()
            if commit.schema is not None:
                check_signs(commit.schema, self._settings.target)
            if table is None:
                if commit.schema is None:
                    return False
                table = self._create(commit.schema)
            state = self._state(table)
            check_fingerprint(state.fingerprint, commit.fingerprint)
            check_table(table, self._settings.partition_by, self._settings.target)
            if commit.replace and not state.fingerprint and table.current_snapshot() is not None:
                raise ExportError(
                    "the table holds rows that a rebuild would remove", uri=self._settings.target
                )
            moved = advanced(state.committed, commit.advances)
            if commit.letters is not None:
                publish_dead_letters(self._settings, state.letters)
            if commit.base is not None:
                check_base(commit, (file.key for file in _files(table)), self._settings.target)
            if commit.schema is not None:
                _check_schema(table, commit.schema)
            try:
                self._commit_once(table, commit, moved)
            except CommitFailedException:
                continue
            return True
        raise CommitConflictError(
            f"other writers came before {_COMMIT_ATTEMPTS} times; nothing was committed",
            uri=self._settings.target,
        )

    def orphans(self) -> list[TargetObject]:
        """See `ExportTable.orphans`. Files of any snapshot that is not expired are known."""
        return self._unknown(list(both_listed(self._open_target(), self._prefix)))

    def remove(self, orphans: Sequence[TargetObject]) -> None:
        """See `ExportTable.remove`."""
        target = self._open_target()
        for orphan in self._unknown(orphans):
            target.delete(orphan.key)

    def _unknown(self, listed: Sequence[TargetObject]) -> list[TargetObject]:
        """Those that the table as it is now does not know. They are listed before: what is
        committed in between is known.
        """
        table = self._table()
        if table is None:
            return list(listed)
        known = set(table.inspect.all_data_files()["file_path"].to_pylist())
        location = table.location().rstrip("/")
        return [found for found in listed if f"{location}/{found.key}" not in known]

    def close(self) -> None:
        """See `ExportTable.close`."""
        if self._target is not None:
            self._target.close()
        if self._opened is not None:
            self._opened.close()

    # -- catalog

    @property
    def _prefix(self) -> str:
        return f"data/kts/{self._settings.export_id}/"

    @property
    def _catalog(self) -> Catalog:
        if self._opened is None:
            from pyiceberg.catalog import load_catalog

            properties = dict(self._settings.catalog.reveal())
            name = properties.pop("name", "kts")
            self._opened = self._try(
                "the catalog cannot be opened", lambda: load_catalog(name, **properties)
            )
        return self._opened

    def _table(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._catalog
        try:
            return catalog.load_table(self._settings.target)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Iceberg table cannot be loaded", error) from None

    def _location(self) -> str:
        """The table's root, also of one that will be created with the first commit.

        Raises:
            InvalidOptionError: The catalog alone decides where tables go.
        """
        table = self._table()
        if table is not None:
            return table.location().rstrip("/")
        from pyiceberg.exceptions import NoSuchNamespaceError

        namespace, _, name = self._settings.target.rpartition(".")
        try:
            properties = self._catalog.load_namespace_properties(namespace)
        except NoSuchNamespaceError:
            properties = {}
        if location := properties.get("location"):
            return f"{location.rstrip('/')}/{name}"
        if warehouse := self._catalog.properties.get("warehouse"):
            return f"{warehouse.rstrip('/')}/{namespace.replace('.', '/')}/{name}"
        raise InvalidOptionError(
            f"the catalog does not say where new tables go: create {self._settings.target} first,"
            " or give catalog a warehouse"
        )

    def _create(self, schema: pa.Schema) -> Table:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, IdentityTransform

        namespace = self._settings.target.rpartition(".")[0]

        def create() -> None:
            self._catalog.create_namespace_if_not_exists(namespace)
            with (
                self._catalog.create_table_transaction(
                    self._settings.target, schema, location=self._location()
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                for field in self._settings.partition_by:
                    if field.is_date:
                        spec.add_field(field.source, DayTransform(), field.name)
                    else:
                        spec.add_field(field.source, IdentityTransform(), field.name)

        try:
            create()
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another export was first; its table is as good
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Iceberg table cannot be created", error) from None
        table = self._table()
        if table is None:
            raise ExportError(
                "the Iceberg table was created and is gone", uri=self._settings.target
            )
        return table

    def _state(self, table: Table) -> TableState:
        ranges: dict[PartitionKey, OffsetRange] = {}
        rules: dict[str, str] = {}
        newest: dict[PartitionKey, int] = {}
        own = f"kts.{self._settings.export_id}."
        for name, text in table.properties.items():
            if not name.startswith(own):
                continue
            owner, _, last = name.removeprefix(own).rpartition(".")
            if owner == "rules":
                rules[last] = text
            elif last == "newest":
                topic_id, _, number = owner.rpartition(".")
                newest[PartitionKey(topic_id, int(number))] = int(text)
            elif match := _RANGE.fullmatch(text):
                span = OffsetRange(int(match["start"]), int(match["stop"]))
                ranges[PartitionKey(owner, int(last))] = span
        letters = table.properties.get(f"{own}letters")
        return TableState(ranges, rules, newest, None if letters is None else int(letters))

    def _commit_once(
        self, table: Table, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> None:
        """Raises PyIceberg's CommitFailedException when another writer came before."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.expressions import AlwaysTrue

        own = f"kts.{self._settings.export_id}."
        properties = {f"{own}rules.{name}": text for name, text in commit.fingerprint.items()}
        for key, span in moved.items():
            properties[f"{own}{key.topic_id}.{key.partition}"] = f"{span.start}:{span.stop}"
        for key, newest_ms in commit.newest_ms.items():
            properties[f"{own}{key.topic_id}.{key.partition}.newest"] = str(newest_ms)
        if commit.letters is not None:
            properties[f"{own}letters"] = str(commit.letters)
        location = table.location().rstrip("/")
        pinned: Any = PinnedCatalog(table)
        table.catalog = pinned
        # In this process only: every retry would meet the same refusal.
        table.metadata.properties[_NO_RETRIES] = "0"
        try:
            # PyIceberg warns of every column without bounds: keys and values have none on purpose.
            with errors_only("pyiceberg.io.pyarrow"), table.transaction() as transaction:
                transaction.set_properties(properties)
                if commit.replace and table.current_snapshot() is not None:
                    transaction.delete(AlwaysTrue())
                transaction.add_files(
                    [f"{location}/{file.key}" for file in commit.files],
                    snapshot_properties={"kts.run": commit.run_id},
                    # Names of attempts are unique, and looking would read every manifest.
                    check_duplicate_files=False,
                )
        except CommitFailedException:
            raise
        except ValueError as error:  # PyIceberg compares columns, types and nulls with the files'
            raise self._failed(
                "the rows do not fit the Iceberg table: export into another table, or give the rows"
                " its columns with columns=… or a transform",
                error,
            ) from None
        except OverflowError as error:
            # PyIceberg has no bounds outside the years 1 to 9999. Without them, in this process
            # only, the files are added all the same.
            # Days that rows are partitioned by are within, and are told by bounds.
            days = {field.source for field in self._settings.partition_by}
            unbounded = {f"{_METRICS}{name}": "none" for name in _times(table) if name not in days}
            if unbounded.items() <= table.metadata.properties.items():
                raise self._failed("the Iceberg table did not take the commit", error) from None
            table.metadata.properties.update(unbounded)
            self._commit_once(table, commit, moved)
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Iceberg table did not take the commit", error) from None

    # -- the rest

    def _open_target(self) -> TargetStore:
        if self._target is None:
            self._target = open_target(self._location(), self._settings.storage)
        return self._target

    def _try(self, text: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed(text, error) from None

    def _failed(self, text: str, error: Exception) -> ExportError:
        hidden = [
            value
            for name, value in self._settings.catalog.reveal().items()
            if re.search(r"key|secret|token|password|credential", name)
        ]
        return ExportError(
            f"{text}: {scrub(f'{type(error).__name__}: {error}', hidden)}",
            uri=self._settings.target,
        )


def _times(table: Table) -> list[str]:
    """Names of the columns that are timestamps."""
    from pyiceberg.types import TimestampType, TimestamptzType

    kinds = (TimestampType, TimestamptzType)
    return [field.name for field in table.schema().fields if isinstance(field.field_type, kinds)]


def _files(table: Table) -> tuple[BaseFile, ...]:
    location = f"{table.location().rstrip('/')}/"
    files = []
    for task in table.scan().plan_files():
        path = task.file.file_path
        if task.delete_files:
            raise ExportError("the table has delete files: rewrite its data files first", uri=path)
        if not path.startswith(location):
            raise ExportError("the table has a file elsewhere", uri=path)
        files.append(BaseFile(path.removeprefix(location), task.file.file_size_in_bytes, {}))
    return tuple(files)


def _check_schema(table: Table, schema: pa.Schema) -> None:
    known = set(table.schema().column_names)
    if missing := [name for name in schema.names if name not in known]:
        raise ExportError(f"the table has not the columns {', '.join(missing)}")
