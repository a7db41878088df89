"""Draws the figure of a run: four small charts that compare this library with Spark's own Kafka
source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_OURS: Final = "#2a7f4f"
_THEIRS: Final = "#9aa7b5"

_THEIR_SCAN: Final = "Spark's Kafka source, data in the tier"
PICTURES: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    (
        "Full scan, records of 100 B",
        {
            "tiered-kafka": "ours, Spark 4.0, 100 B, all columns → noop",
            "Kafka source, from the tier": f"{_THEIR_SCAN}, 100 B, all columns → noop",
            "Kafka source, hot data": (
                "Spark's Kafka source, data hot on the broker, 100 B, all columns → noop"
            ),
        },
    ),
    (
        "Full scan, records of 1 KB",
        {
            "tiered-kafka": "ours, Spark 4.0, 1000 B, all columns → noop",
            "Kafka source, from the tier": f"{_THEIR_SCAN}, 1000 B, all columns → noop",
            "Kafka source, hot data": (
                "Spark's Kafka source, data hot on the broker, 1000 B, all columns → noop"
            ),
        },
    ),
    (
        "Export to zstd Parquet, records of 100 B",
        {
            "tiered-kafka": "our export in Spark 4.0, 100 B → zstd Parquet",
            "Kafka source": f"{_THEIR_SCAN}, 100 B → zstd Parquet",
        },
    ),
    (
        "Looking for one key, records of 100 B",
        {
            "tiered-kafka": "ours, WHERE key = …, 53.5 M records of 100 B: scanned",
            "Kafka source": (
                "Spark's Kafka source, WHERE key = …, data in the tier, 100 B: scanned"
            ),
        },
    ),
)
"""Title of each chart, and for each bar of the chart its label and the name of its figure, in
million records per second.
"""


def draw(figures: Mapping[str, float], path: Path) -> bool:
    """Writes the charts whose figures exist to the PNG `path`. `figures` maps the name of a
    measurement to million records per second. Returns whether there was a chart to draw.
    """
    pictures = [
        (title, {label: figures[name] for label, name in bars.items() if name in figures})
        for title, bars in PICTURES
    ]
    pictures = [(title, bars) for title, bars in pictures if len(bars) > 1]
    if not pictures:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(11, 4.6))
    for axes in grid.flat[len(pictures) :]:
        axes.set_axis_off()
    for axes, (title, bars) in zip(grid.flat, pictures, strict=False):
        colours = [_OURS if label == "tiered-kafka" else _THEIRS for label in bars]
        drawn = axes.barh(list(bars), list(bars.values()), color=colours)
        axes.bar_label(drawn, fmt="%.3g", padding=4)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xticks([])
        axes.margins(x=0.15)
        axes.invert_yaxis()
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.text(0.5, 0.02, "Million records a second; longer is better", ha="center", fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
