"""Raises the errors of tasks on the driver with their own class.

Spark returns only the text of a Python exception. So a task adds a note to its error: the class and
the attributes as one line of JSON, without credentials. Python prints notes after the message, so
Spark transfers the note with the traceback.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kts_source import errors
from kts_source.errors import TieredKafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOTE: Final = "tiered-kafka error: "
_PATTERN: Final = re.compile(rf"^\s*{_NOTE}(\{{.*\}})\s*$", re.MULTILINE)


@contextmanager
def noted_errors() -> Iterator[None]:
    """Adds the note for the driver to a `TieredKafkaError` that the block raises in a task."""
    try:
        yield
    except TieredKafkaError as error:
        kind = next(cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
        attributes = {
            name: value
            for name, value in vars(error).items()
            if isinstance(value, str | int | tuple)
        }
        error.add_note(f"{_NOTE}{json.dumps({'class': kind.__name__, **attributes}, default=str)}")
        raise


@contextmanager
def original_errors() -> Iterator[None]:
    """Replaces an exception of Spark that the block raises by the error of the task.

    Raises:
        TieredKafkaError: A task raised this error. The exception of Spark is its cause.
    """
    try:
        yield
    except Exception as error:
        original = _original(str(error))
        if original is None:
            raise
        raise original from error


def _original(text: str) -> TieredKafkaError | None:
    notes = _PATTERN.findall(text)
    if not notes:
        return None
    # The message may contain texts of a tier, but without line breaks, so they are no note.
    attributes = json.loads(notes[-1])
    kind = getattr(errors, attributes.pop("class"), TieredKafkaError)
    original: TieredKafkaError = kind(attributes["message"])
    vars(original).update(
        {name: tuple(v) if isinstance(v, list) else v for name, v in attributes.items()}
    )
    return original
