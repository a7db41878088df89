"""Collects the initial fuzz inputs of each target.

They are files that a broker, the storage plugin or the test writers wrote, and inputs that made a
target fail in the past.
"""

from __future__ import annotations

import base64
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segment_format.record.framing import iter_entries
from segment_format.testing import LogBuilder, SimpleRecord
from tests.fuzz.targets import AAD, DATA_KEY
from tests.golden_data import GOLDEN, KEYS, LOCAL_TIER, TIER, VECTORS
from tests.segment_format.manifest.writers import transform_chunk
from tests.segment_format.record.vectors import CODEC_NUMBERS, kafka_vectors

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SEED: Final = 3000
"""Maximum size of an input in bytes. Short inputs run faster than long ones, and a larger share of
their mutations changes important fields.
"""
INPUTS: Final = Path(__file__).parent / "inputs"
"""Inputs of earlier failures, by target."""
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def seeds(target: str) -> list[bytes]:
    """Returns the initial inputs of a target.

    The first byte of most inputs is the mode: it selects how the target parses the other bytes.
    """
    if target.startswith("broken-"):
        return [b"0123456789"]
    inputs = {
        "framing": lambda: _with_modes(_record_sets()),
        "batches": lambda: _with_modes(_record_sets(), 0, 1),
        "batch-header": lambda: _with_modes(_record_sets()),
        "control-record": lambda: [b"\x04" + bytes.fromhex("00000001000000000005")],
        "codec": _codec_inputs,
        "offset-index": lambda: _with_modes(_side_files("index")),
        "time-index": lambda: _with_modes(_side_files("timeindex")),
        "transaction-index": lambda: _with_modes(_side_files("txnindex"), 7),
        "snapshot": lambda: _with_modes(_side_files("snapshot"), 0, 1),
        "checkpoint": lambda: _with_modes(_side_files("leader_epoch_checkpoint")),
        "manifest": lambda: _with_modes(_manifests(), 0, 128),
        "chunk-sizes": _chunk_size_inputs,
        "custom-metadata": _custom_metadata_inputs,
        "metadata-record": lambda: _with_modes(_metadata_records()),
        "object-name": lambda: _with_modes(_object_names()),
        "id": lambda: _with_modes([b"LWgrMmVrT0a__7a4SasuPA"]),
        "data-key": lambda: _with_modes([b"key1:" + base64.b64encode(bytes(256))]),
        "private-key": lambda: _with_modes(path.read_bytes() for path in KEYS.glob("*.pem")),
        "chunk": _chunk_inputs,
        "kernels": lambda: [bytes((mode, 1)) + data for mode in (0, 13) for data in _record_sets()],
        "kernel-columns": lambda: [
            bytes((column, 1)) + data for column in range(13) for data in _record_sets()[::4]
        ],
        "kernel-payloads": _payload_inputs,
    }[target]()
    saved = [path.read_bytes() for path in sorted((INPUTS / target).glob("*"))]
    return sorted({data for data in inputs if len(data) <= MAX_SEED + 4}.union(saved))


def _with_modes(inputs: object, *modes: int) -> list[bytes]:
    return [bytes((mode,)) + data for data in inputs for mode in modes or (0,)]  # type: ignore[attr-defined]


@functools.cache
def _record_sets() -> list[bytes]:
    sets = [bytes.fromhex(entry["hex"]) for entry in kafka_vectors()["batches"]]
    sets += [sets[0] + sets[-1], sets[-2] + sets[3], *_built_logs()]
    for path in sorted(LOCAL_TIER.glob("**/*.log")):
        sets.append(_first_entries(path.read_bytes()))
    return sorted({data for data in sets if data}, key=len)


def _built_logs() -> Iterator[bytes]:
    records = [
        SimpleRecord(b"v" * 70, key=b"k", headers=(("h", b"x"), ("", None)), timestamp=5),
        SimpleRecord(None, key=None, timestamp=-1),
        SimpleRecord(b"repeated " * 20, key=b"", timestamp=1 << 41),
    ]
    for codec in _CODECS:
        builder = LogBuilder(start_offset=100, codec=codec)
        builder.append(records)
        builder.send(5, records[:2])
        builder.abort(5)
        builder.send(4242, records[2:])
        builder.append_empty_batch(3)
        builder.append(records, timestamp_type=1)
        yield builder.build().segments[0].log
        if codec != "zstd":
            builder = LogBuilder(start_offset=7)
            plain = [SimpleRecord(b"one", key=b"k"), SimpleRecord(b"two" * 30)]
            builder.append_message_set(plain, magic=0, codec=codec)
            builder.append_message_set(plain, magic=1, codec=codec)
            yield builder.build().segments[0].log


def _first_entries(log: bytes) -> bytes:
    """Truncates a log after the last entry that fits into `MAX_SEED` bytes."""
    stop = 0
    for entry in iter_entries(log):
        if entry.stop > MAX_SEED:
            break
        stop = entry.stop
    return log[:stop]


def _codec_inputs() -> list[bytes]:
    magics = {0: 2, 8: 1, 16: 0}
    return [
        bytes((CODEC_NUMBERS[case["codec"]] | bits,)) + bytes.fromhex(case["payload"])
        for case in kafka_vectors()["codec"]
        for bits in (magics if case["codec"] == "lz4" else (0,))
    ]


def _payload_inputs() -> list[bytes]:
    cases = [
        bytes((0, CODEC_NUMBERS[case["codec"]], case["declared_count"] % 64, 0))
        + bytes.fromhex(case["payload"])
        for case in kafka_vectors()["codec"]
    ]
    for log in _built_logs():
        for entry in iter_entries(log):
            stored = log[entry.position : entry.stop]
            if entry.magic == 2:
                cases.append(bytes((0, stored[22] & 7, stored[60], stored[22] >> 3)) + stored[61:])
    return cases


def _side_files(suffix: str) -> list[bytes]:
    names = {
        "index": "offsetindex base100",
        "timeindex": "timeindex base100",
        "leader_epoch_checkpoint": "leader-epoch",
        "txnindex": "txnindex",
    }
    files = kafka_vectors()["files"]
    contents = [bytes.fromhex(files[name]) for name in files if name == names.get(suffix, name)]
    if suffix == "snapshot":
        contents = [
            bytes.fromhex(text) for name, text in files.items() if name.startswith("snapshot")
        ]
    return contents + [path.read_bytes()[:MAX_SEED] for path in LOCAL_TIER.glob(f"**/*.{suffix}")]


def _manifest_files() -> list[Path]:
    tier = sorted(TIER.glob("**/*.rsm-manifest"))
    vectors = sorted((VECTORS / "aiven_vectors").glob("**/*.rsm-manifest"))
    return vectors + tier[:: max(1, len(tier) // 12)]


def _manifests() -> list[bytes]:
    return [path.read_bytes() for path in _manifest_files()]


def _chunk_size_inputs() -> list[bytes]:
    cases = json.loads((VECTORS / "aiven_vectors" / "chunk_sizes.json").read_text())
    packed = [b"\0" + bytes.fromhex(case["codec_hex"]) for case in cases if case["codec_hex"]]
    texts = [case["transformedChunks"] for case in cases if case["transformedChunks"]]
    return packed + [b"\1" + text.encode() for text in texts]


def _custom_metadata_inputs() -> list[bytes]:
    cases = json.loads((VECTORS / "aiven_vectors" / "custom_metadata.json").read_text())
    return [b"\0" + bytes.fromhex(case["hex"]) for case in cases if case["hex"]]


def _metadata_records() -> list[bytes]:
    records = [bytes.fromhex(text) for text in kafka_vectors()["metadata_topic"].values()]
    lines = (GOLDEN / "metadata-topic" / "records.jsonl").read_text().splitlines()
    return records + [base64.b64decode(json.loads(line)["value"]) for line in lines[::20]]


def _object_names() -> list[bytes]:
    tier = [str(path.relative_to(TIER)).encode() for path in _manifest_files()[-3:]]
    local = [path.name.encode() for path in sorted(LOCAL_TIER.glob("**/*"))[:8]]
    names = [element for name in tier for element in name.split(b"/")]
    return tier + local + names + [b"/".join(name.split(b"/")[1:]) for name in tier]


def _chunk_inputs() -> list[bytes]:
    plain = b"chunk of a segment " * 12
    inputs = []
    for mode in (0, 4, 8, 12):
        key, aad = (DATA_KEY, AAD) if mode & 4 else (None, None)
        stored = transform_chunk(plain, compression=bool(mode & 8), data_key=key, aad=aad)
        inputs.append(bytes((mode,)) + len(plain).to_bytes(3, "big") + stored)
    return inputs
