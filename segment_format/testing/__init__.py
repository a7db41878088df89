"""Writes data in Kafka's formats without Kafka: record batches, logs with their side files, and
remote tiers.

Use it in tests of software that reads tiered segments, such as layout plug-ins. `LogBuilder` builds
a log and the rows that readers must return. `AivenTierWriter` and `LocalTierWriter` write the log
to a tier. The writers share no code with the parsers of `segment_format`. So if a writer or a
parser is wrong, tests that use both fail.
"""

from segment_format.testing.batches import (
    ABORT,
    CODEC_NUMBERS,
    COMMIT,
    CONTROL_TYPES,
    CREATE_TIME,
    DEFAULT_TIMESTAMP_MS,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    SimpleRecord,
    compress,
    frame_batch,
    write_batch,
    write_control_batch,
    write_empty_batch,
    write_message_set,
)
from segment_format.testing.log_builder import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BuiltLog,
    ExpectedRow,
    LogBuilder,
)
from segment_format.testing.segment import (
    AbortedTransaction,
    IndexBuilder,
    ProducerEntry,
    SegmentFiles,
    Transaction,
    write_leader_epoch_checkpoint,
    write_offset_index,
    write_producer_snapshot,
    write_time_index,
    write_transaction_index,
)
from segment_format.testing.tiers import (
    AivenTierWriter,
    EncryptionKey,
    LocalTierWriter,
    WrittenSegment,
)

__all__ = [
    "ABORT",
    "CODEC_NUMBERS",
    "COMMIT",
    "CONTROL_TYPES",
    "CREATE_TIME",
    "DEFAULT_TIMESTAMP_MS",
    "LOG_APPEND_TIME",
    "NO_TIMESTAMP",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "AbortedTransaction",
    "AivenTierWriter",
    "BuiltLog",
    "EncryptionKey",
    "ExpectedRow",
    "IndexBuilder",
    "LocalTierWriter",
    "LogBuilder",
    "ProducerEntry",
    "SegmentFiles",
    "SimpleRecord",
    "Transaction",
    "WrittenSegment",
    "compress",
    "frame_batch",
    "write_batch",
    "write_control_batch",
    "write_empty_batch",
    "write_leader_epoch_checkpoint",
    "write_message_set",
    "write_offset_index",
    "write_producer_snapshot",
    "write_time_index",
    "write_transaction_index",
]
