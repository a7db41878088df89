"""Runs the notebook `03_from_history_to_live.ipynb` on a topic while a producer writes."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.worked_topic import Topic
from tests.notebooks.test_notebooks import outputs
from tools.run_notebooks import NOTEBOOKS, executed

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Jupyter's client and its sockets cause these warnings.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:unclosed:ResourceWarning"),
]


def test_notebook_reads_history_and_then_live_records(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(cluster, "notebook")
    topic.write(4)
    topic.settle()
    options = {
        "path": str(cluster.tier),
        "layout": "local-tiered-storage",
        "subscribe": topic.name,
    }
    monkeypatch.setenv("TIER_OPTIONS", json.dumps(options))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", cluster.bootstrap)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def produce() -> None:
        stop = time.monotonic() + 25
        while time.monotonic() < stop:
            topic.work.step()
            time.sleep(0.2)
        topic.work.finish()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        shown = list(outputs(executed(NOTEBOOKS / "03_from_history_to_live.ipynb")))
    finally:
        producer.join()
    text = "\n".join(value for kind, value in shown if kind == "text/plain")
    history = re.search(r"(\d+) batches of history", text)
    assert history is not None
    assert int(history[1]) > 0
    assert re.search(r"[1-9]\d* rows, 0 twice, 0 missing", text), text
    assert "lag at the end: 0" in text
