"""Checks that a worker whose tasks read only the tier does not load the protocol library."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log

if TYPE_CHECKING:
    from pathlib import Path

# The worker runs its tasks one after the other and prints the loaded modules after each.
_WORKER = """
import json, pickle, sys
from kts_source.read.read_task import run_task
options, tasks = pickle.load(sys.stdin.buffer)
told = []
for task in tasks:
    rows = sum(batch.num_rows for batch in run_task(task, options))
    told.append([len(task.slices), len(task.ranges), rows, "kafka" in sys.modules])
print(json.dumps(told))
"""


def test_protocol_library_is_loaded_only_for_broker_ranges(tmp_path: Path) -> None:
    builder = LogBuilder(segment_bytes=600)
    for number in range(30):
        builder.append([SimpleRecord(b"%d" % number)] * 2)
    log = builder.build()
    store: dict[str, bytes] = {}
    writer = LocalTierWriter(store, topic="t", partition=0)
    tiered = log.segments[:-1]
    for files in tiered:
        writer.write_segment(files)
    for key, data in store.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with FakeCluster() as cluster:
        cluster.create("t", [FakePartition(fake_log(log))], uuid_from_text(writer.topic_id))
        options = parse_options(
            {
                "path": str(tmp_path),
                "layout": "local-tiered-storage",
                "subscribe": "t",
                "kafka.bootstrap.servers": cluster.bootstrap,
                "maxSegmentsPerTask": "1",
                "targetPartitionBytes": "600",
            }
        )
        assert options.broker_fallback
        tasks = sorted(plan_scan(options).tasks, key=lambda task: bool(task.ranges))
        worker = subprocess.run(
            [sys.executable, "-c", _WORKER],
            input=pickle.dumps((options, tasks)),
            capture_output=True,
            timeout=120,
            check=True,
        )
    printed = json.loads(worker.stdout)
    of_tier = [loaded for slices, ranges, _, loaded in printed if slices and not ranges]
    of_brokers = [loaded for _, ranges, _, loaded in printed if ranges]
    assert len(of_tier) >= len(tiered) > 1
    assert not any(of_tier)
    assert of_brokers
    assert all(of_brokers)
    assert sum(rows for _, _, rows, _ in printed) == 60
