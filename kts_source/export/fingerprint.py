"""The rules that decide which rows a table gets: a table begun with some goes on with no others.

A digest of a transform: of its code, and of all that is bound to it.

It covers the source of functions and classes, closures, defaults, arguments of `functools.partial`,
and the attributes of objects, at any depth. It does not cover module globals, attributes that a
class gets later, and the code that a function calls, unless it is bound in one of those ways. A
text `fingerprint` on any of them stands for all of it.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import FingerprintError
from kts_source.export.partitioning import partition_rule
from kts_source.options.value_formats import DROP_MALFORMED, PERMISSIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.export.settings import ExportSettings, Transform
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat


_PICKLE_PROTOCOL: Final = 4
_ATOMS: Final = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis))


def own_fingerprint(value: object) -> str | None:
    """The text by which something asks to be known."""
    own = None if isinstance(value, type) else getattr(value, "fingerprint", None)
    return own if isinstance(own, str) else None


def digest_transform(transform: object) -> str:
    """The digest: equal in every process that binds equal values.

    Raises:
        FingerprintError: Something bound cannot be told from others of its kind.
    """
    try:
        return _Digest().of(transform).hex()[:32]
    except RecursionError:
        raise _unknown(transform, "it is nested too deeply") from None


class _Digest:
    """Digests by content: sharing and order of sets make no difference."""

    def __init__(self) -> None:
        # The values are kept, so that no number is given twice.
        self._known: dict[int, tuple[object, bytes]] = {}

    def of(self, value: object) -> bytes:
        if type(value) in _ATOMS:
            return _hash(type(value).__name__, repr(value))
        if id(value) not in self._known:
            self._known[id(value)] = value, _hash("itself")
            own = own_fingerprint(value)
            digest = self._by_kind(value) if own is None else _hash("own", own)
            self._known[id(value)] = value, digest
        return self._known[id(value)][1]

    def _all(self, values: Iterable[object]) -> list[bytes]:
        return [self.of(value) for value in values]

    @singledispatchmethod
    def _by_kind(self, value: Any) -> bytes:  # noqa: ANN401
        """Objects, as pickle would take them apart."""
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered else value.__reduce_ex__(_PICKLE_PROTOCOL)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001  # objects raise what they like
            raise _unknown(value, f"{type(error).__name__}: {error}") from None
        if isinstance(reduced, str):
            return _hash("global", qualified_name(type(value)), reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None, None)[:5]
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            state = sorted(state.items())  # attributes have no order
        parts = [self.of(type(value)), *self._all(arguments), self.of(state)]
        parts += self._all(items or ()) + self._all(pairs or ())
        return _hash("object", qualified_name(make), *parts)

    @_by_kind.register(tuple)
    @_by_kind.register(list)
    def _sequence(self, value: Any) -> bytes:  # noqa: ANN401
        return _hash("sequence", self.of(type(value)), *self._all(value))

    @_by_kind.register
    def _dict(self, value: dict) -> bytes:  # type: ignore[type-arg]
        return _hash("dict", self.of(type(value)), *self._all(value.items()))

    @_by_kind.register(set)
    @_by_kind.register(frozenset)
    def _set(self, value: Any) -> bytes:  # noqa: ANN401
        return _hash("set", self.of(type(value)), *sorted(self._all(value)))

    @_by_kind.register
    def _module(self, value: types.ModuleType) -> bytes:
        return _hash("module", value.__name__)

    @_by_kind.register
    def _class(self, value: type) -> bytes:
        sources = [source_of(kind) or b"" for kind in value.__mro__ if not _is_python_s_own(kind)]
        return _hash("class", qualified_name(value), *sources)

    @_by_kind.register
    def _method(self, value: types.MethodType) -> bytes:
        return _hash("method", self.of(value.__func__), self.of(value.__self__))

    @_by_kind.register
    def _builtin(self, value: types.BuiltinFunctionType) -> bytes:
        owner = value.__self__
        bound = b"" if isinstance(owner, types.ModuleType) else self.of(owner)
        return _hash("builtin", qualified_name(value), bound)

    @_by_kind.register
    def _cell(self, value: types.CellType) -> bytes:
        try:
            return _hash("cell", self.of(value.cell_contents))
        except ValueError:
            return _hash("empty cell")

    @_by_kind.register
    def _function(self, value: types.FunctionType) -> bytes:
        if _is_python_s_own(value):
            return _hash("function", qualified_name(value))
        bound = (value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)
        return _hash(
            "function", qualified_name(value), self._code(value.__code__), *self._all(bound)
        )

    def _code(self, code: types.CodeType) -> bytes:
        source = source_of(code)
        if source is None:  # then it is known by what Python made of it, which versions differ in
            constants = [
                self._code(one) if isinstance(one, types.CodeType) else self.of(one)
                for one in code.co_consts
            ]
            return _hash("code", code.co_code, repr(code.co_names), *constants)
        # Lambdas of one line have one source.
        return _hash("source", source, repr(_begin(code)) if code.co_name == "<lambda>" else "")


def _begin(code: types.CodeType) -> tuple[int, int] | None:
    """Line, from the first one of the source, and column where a function's body begins."""
    found = [
        (place.lineno - code.co_firstlineno, place.col_offset)
        for one in dis.get_instructions(code)
        if one.opname not in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL")
        and (place := one.positions) is not None
        and place.lineno is not None
        and place.col_offset is not None
        and place.col_offset != place.end_col_offset  # what Python adds has no width
    ]
    return min(found, default=None)


def source_of(value: Any) -> bytes | None:  # noqa: ANN401
    """Source of a function, class or code object; `None` where Python does not find it."""
    try:
        return inspect.getsource(value).encode()
    except (OSError, TypeError):
        return None


def _is_python_s_own(value: Any) -> bool:  # noqa: ANN401
    """Whether it is of the standard library, whose source changes with every version."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in sys.stdlib_module_names


def qualified_name(value: Any) -> str:  # noqa: ANN401
    """Module and name of a function or class."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _hash(kind: str, *parts: str | bytes) -> bytes:
    found = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()


def _unknown(value: object, reason: str) -> FingerprintError:
    return FingerprintError(
        f"the transform holds a {qualified_name(type(value))} that cannot be told from another one"
        f" ({reason}): give the transform, or what it holds, a text attribute `fingerprint` that"
        " changes when its rows do"
    )


Fingerprint: TypeAlias = Mapping[str, str]
"""Rule to its text, or to a digest of it."""

_BOUND: Final = re.compile(r"~[0-9a-f]{32}\Z")


def fingerprint(options: ScanOptions, settings: ExportSettings) -> Fingerprint:
    """The rules of an export."""
    compact = ""
    if (how := settings.compaction) is not None:
        # A rebuild replaces the whole table, so it must cover what the table was built from.
        compact = f"{how.tombstones},{how.delete_retention_ms},{options.selection!r}"
    return {
        "isolationLevel": options.isolation_level,
        "columns": ",".join(_column_rules(options, settings)),
        "transform": describe_transform(settings.transform),
        "partitionBy": partition_rule(settings.partition_by),
        "where": "" if options.where is None else repr(options.where),
        "compact": compact,
    }


def _column_rules(options: ScanOptions, settings: ExportSettings) -> Iterator[str]:
    """Columns and how they are decoded.

    Types are not among them where the table's columns tell them: those may grow. What a transform
    makes of a type, nobody can tell.
    """
    formats = {form.column: form for form in options.formats}
    for name in options.columns:
        form = formats.pop(name, None)
        yield name if form is None else _decoding(form, settings)
    for form in formats.values():
        if form.mode == DROP_MALFORMED:  # rows are left out even where the column is not written
            yield f"{form.column}:{form.format}:{DROP_MALFORMED}"


def _decoding(form: ColumnFormat, settings: ExportSettings) -> str:
    """Where malformed values end a run or are left out, the table has none: so who met one may go
    on without such rows.
    """
    mode = f":{PERMISSIVE}" if form.mode == PERMISSIVE else ""
    kind = "" if settings.transform is None else f":{number(str(form.type))}"
    return f"{form.column}:{form.format}{mode}{kind}"


def describe_transform(transform: Transform | None) -> str:
    """A text that changes when the transform does, as far as that can be seen.

    A transform may carry a text `fingerprint` of its own; others are known by their name, a digest
    of their source, and one of all that is bound to them (see `transform_digest`).

    Raises:
        FingerprintError: Something bound to it cannot be told from others of its kind.
    """
    if transform is None:
        return ""
    if (own := own_fingerprint(transform)) is not None:
        return own
    named: Any = transform if hasattr(transform, "__qualname__") else type(transform)
    code, source = qualified_name(named), source_of(named)
    if source is not None:
        code += f"#{hashlib.sha256(source).hexdigest()[:16]}"
    # Tables begun by earlier versions have the code only.
    return f"{code}~{digest_transform(transform)}"


def number(text: str) -> int:
    """A digest that fits where a table keeps a version: 63 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _texts(rule: str) -> Iterator[str]:
    """A rule as tables may have it: as it is, as earlier versions gave it, and their digests."""
    for text in {rule, _BOUND.sub("", rule)}:
        yield text
        yield str(number(text))


def check_fingerprint(stored: Fingerprint, given: Fingerprint) -> None:
    """Compares rule by rule; a rule that is not stored is not compared.

    Of a transform, tables begun by earlier versions have name and source only: these are compared
    then, and the next commit stores all of it. A table that keeps no texts has their `number`.

    Raises:
        FingerprintError: Names every rule that differs.
    """
    different = [
        f"{name} is {given[name]!r} now"
        + ("" if known.isdigit() else f" and was {known!r} when it was begun")
        for name, known in stored.items()
        if name in given and known not in _texts(given[name])
    ]
    if different:
        raise FingerprintError(
            f"the table was begun with other rules: {'; '.join(different)}. Export into another"
            " table, or give another export_id"
        )
