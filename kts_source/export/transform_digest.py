"""A digest of a transform: of its code, and of all that is bound to it.

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
import sys
import types
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
