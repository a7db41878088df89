"""Finds layouts by name: built-in layouts and layouts that plug-ins register."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from kts_source.layout.aiven import AivenLayout
from kts_source.layout.kafka_logs.kafka_logs import KafkaLogsLayout
from kts_source.layout.local_tiered import LocalTieredLayout

if TYPE_CHECKING:
    from kts_source.layout.layout import Layout

ENTRY_POINT_GROUP: Final = "kts_source.layouts"
BUILT_IN_LAYOUTS: Final = (AivenLayout.name, LocalTieredLayout.name, KafkaLogsLayout.name)


def find_layout(name: str, *, end_of_log: bool = False, paths: int = 1) -> Layout:
    """Returns a new layout for one plan. `name` and `end_of_log` are the values of options `layout`
    and `endOfLog`. `paths` is the number of paths that contain log directories of brokers.

    Raises:
        InvalidOptionError: No layout has this name.
    """
    layouts: tuple[Layout, ...] = (
        AivenLayout(),
        LocalTieredLayout(),
        KafkaLogsLayout(end_of_log=end_of_log, paths=paths),
    )
    built_in = {layout.name: layout for layout in layouts}
    if name in built_in:
        return built_in[name]
    plug_ins = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in plug_ins:
        plug_in: Layout = plug_ins[name].load()()
        return plug_in
    available = ", ".join(sorted({*built_in, *plug_ins}))
    raise InvalidOptionError(f"option 'layout' is {name!r}; known layouts: {available}")
