"""What an audit can find: one closed table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LISTING: Final = "listing"
METADATA: Final = "metadata"
INDEXES: Final = "indexes"
BYTES: Final = "bytes"
LEVELS: Final = (LISTING, METADATA, INDEXES, BYTES)
"""What is looked at, from little to all; each holds those before it."""


class Severity(StrEnum):
    """How bad a finding is.

    `ERROR`: readers fail, or would give wrong rows, or offsets are lost. `WARNING`: it costs money,
    or may become an error. `INFO`: as usual in a tier that is in use.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


_RESTORE: Final = (
    "Restore the object from a replica or a version of the bucket; until then set fallbackPath, or"
    " read around its offsets."
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that can be found.

    Attributes:
        name: As reports and metrics call it.
        severity: How bad it is.
        level: The first level that looks for it.
        meaning: What it is, and what follows.
        advice: What to do.
        loses_data: Whether offsets that the tier should hold are not there.
        is_orphan: Whether its objects are of no use to brokers and readers, and cost money.
    """

    name: str
    severity: Severity
    level: str
    meaning: str
    advice: str = _RESTORE
    loses_data: bool = False
    is_orphan: bool = False


_FAILING: Final = "Look into the log of the partition's leader for failing deletes."
_DELETE: Final = (
    "Compare with the metadata topic (catalog=metadata-topic); delete the objects if brokers do not"
    " know the segment."
)

_TABLE: Final = (
    # what the listing shows
    Kind(
        "copy-under-way",
        Severity.INFO,
        LISTING,
        "Objects of a segment without its manifest, younger than the grace period: a broker is"
        " copying it.",
        "None, unless it is still there when it is older.",
    ),
    Kind(
        "half-copy",
        Severity.WARNING,
        LISTING,
        "Objects of a segment without its manifest: a copy that did not finish. They are not read"
        " and cost money.",
        _DELETE,
        is_orphan=True,
    ),
    Kind(
        "half-delete",
        Severity.WARNING,
        LISTING,
        "A segment of which objects are missing and whose offsets nobody needs: a delete that did"
        " not finish.",
        _DELETE,
        is_orphan=True,
    ),
    Kind(
        "object-missing",
        Severity.ERROR,
        LISTING,
        "A segment of which objects are missing, and no other is known to hold its offsets.",
        loses_data=True,
    ),
    Kind(
        "empty-object",
        Severity.ERROR,
        LISTING,
        "An object of a segment without a byte: it was cut, or its upload failed.",
    ),
    Kind(
        "stray-object",
        Severity.WARNING,
        LISTING,
        "An object whose name is none of a segment's.",
        "Find out who wrote it; brokers never delete it.",
        is_orphan=True,
    ),
    Kind(
        "other-topic-id",
        Severity.WARNING,
        LISTING,
        "Objects of another incarnation of the topic, which was deleted and created again.",
        "Delete them if the cluster does not know the topic id; read them with option topicId.",
        is_orphan=True,
    ),
    Kind(
        "duplicate-upload",
        Severity.WARNING,
        LISTING,
        "A segment that was uploaded more than once; one of the copies is read.",
        _DELETE,
    ),
    # what manifests and side files say
    Kind(
        "object-gone",
        Severity.ERROR,
        METADATA,
        "An object was deleted or replaced while the audit ran.",
        "Audit again; retention may have deleted it.",
    ),
    Kind(
        "manifest-invalid",
        Severity.ERROR,
        METADATA,
        "A manifest that cannot be read, or contradicts itself: the segment cannot be read.",
    ),
    Kind(
        "manifest-foreign",
        Severity.ERROR,
        METADATA,
        "A manifest of another segment than its name says: objects were swapped or copied wrongly.",
    ),
    Kind(
        "log-size",
        Severity.ERROR,
        METADATA,
        "A log object whose size is not the sum of its manifest's chunks: cut, or not of it.",
    ),
    Kind(
        "indexes-size",
        Severity.ERROR,
        METADATA,
        "An object of side files whose size is not what the manifest says: cut, or not of it.",
    ),
    Kind(
        "key-missing",
        Severity.ERROR,
        METADATA,
        "Segments encrypted for a key that is not in the key ring, or that it does not open:"
        " nothing of them was checked.",
        "Give the private key: option encryption.key.pairs.<id>.private.key.file.",
    ),
    Kind(
        "archived",
        Severity.ERROR,
        LISTING,
        "Objects in a storage class that must be restored before they can be read.",
        "Restore them in the store, or move them to another class.",
    ),
    Kind(
        "clock",
        Severity.WARNING,
        METADATA,
        "A time that cannot be: a copy in the future or before 1970, or a record dated more than a"
        " day after its copy. Retention by time goes by such times.",
        "Check the clocks of brokers and producers; message.timestamp.after.max.ms bounds the"
        " latter.",
    ),
    Kind(
        "epochs-invalid",
        Severity.ERROR,
        METADATA,
        "A leader-epoch checkpoint that is not valid, or whose epochs skip back.",
    ),
    Kind(
        "epochs-disagree",
        Severity.ERROR,
        METADATA,
        "A leader-epoch checkpoint that gives the segment's offsets other epochs than its manifest:"
        " a side file of another segment.",
    ),
    Kind(
        "lineage-disagrees",
        Severity.ERROR,
        METADATA,
        "The newest leader-epoch checkpoint contradicts other segments or the leader's log start,"
        " so nothing says for sure which segments belong to the log. Reads that would leave"
        " segments out are refused, except for a log start that is too high: reads only warn.",
        "Restore the damaged side file from a replica or a version of the bucket. Delete no segment"
        " of the partition before.",
    ),
    Kind(
        "snapshot-invalid",
        Severity.ERROR,
        METADATA,
        "A producer snapshot that is missing or not valid. Readers replay batch headers instead.",
    ),
    Kind(
        "snapshot-disagrees",
        Severity.ERROR,
        METADATA,
        "A producer snapshot that knows other open transactions than the segments around it, or"
        " offsets behind its segment: read_committed may end at the wrong place.",
    ),
    Kind(
        "transactions-invalid",
        Severity.ERROR,
        METADATA,
        "A transaction index that is not valid. Readers replay batch headers instead.",
    ),
    Kind(
        "transactions-disagree",
        Severity.ERROR,
        METADATA,
        "A transaction index with a transaction whose abort marker is not in the segment:"
        " read_committed leaves committed records out.",
    ),
    Kind(
        "hole",
        Severity.ERROR,
        METADATA,
        "Offsets between the log start and the tier's end that no segment holds.",
        "Look in the metadata topic for who deleted them; read the rest with failOnDataLoss=false.",
        loses_data=True,
    ),
    Kind(
        "unsure-gap",
        Severity.ERROR,
        METADATA,
        "Offsets that no segment holds, where the layout does not say exactly where the segment"
        " before ends. Reads are refused. No record is missing if compaction removed the last ones"
        " of that segment.",
        "Read with catalog=metadata-topic, which says where segments end. Without brokers,"
        " failOnDataLoss=false skips the gap and warns.",
    ),
    Kind(
        "overlap",
        Severity.INFO,
        METADATA,
        "A segment whose offsets are read from others, which a new leader cut otherwise.",
        "None; retention deletes it with the others.",
    ),
    Kind(
        "dead-branch",
        Severity.WARNING,
        METADATA,
        "A segment, or the end of one, of a branch that died in an unclean leader election: its"
        " records are not the topic's.",
        "Keep it only if the lost records are wanted; brokers delete it late.",
    ),
    Kind(
        "below-log-start",
        Severity.WARNING,
        METADATA,
        "A segment below the log start, which retention or DeleteRecords gave up, and still there.",
        _DELETE,
    ),
    Kind(
        "log-start-unconfirmed",
        Severity.WARNING,
        METADATA,
        "Offsets in the tier that are not read because the log starts above them, as the newest"
        " leader-epoch checkpoint alone says. This is normal after DeleteRecords until the next"
        " segment is copied; a damaged checkpoint looks the same.",
        "Audit with kafka.bootstrap.servers, which compares it with the log start of the leader."
        " Delete no segment of the partition before.",
    ),
    Kind(
        "open-transaction",
        Severity.INFO,
        METADATA,
        "A transaction whose marker is not tiered: read_committed ends where it began.",
        "None; the next segments decide it.",
    ),
    Kind(
        "hanging-transaction",
        Severity.WARNING,
        METADATA,
        "A transaction still open a day after it began: read_committed stands still at it.",
        "Find and abort it: kafka-transactions.sh find-hanging, then abort.",
    ),
    # what brokers say
    Kind(
        "named-not-there",
        Severity.ERROR,
        LISTING,
        "A segment that brokers say is in the tier, and that is not there as a whole: consumers of"
        " its offsets fail.",
        loses_data=True,
    ),
    Kind(
        "unknown-to-brokers",
        Severity.WARNING,
        LISTING,
        "A segment that the metadata topic does not name: brokers neither read nor delete it.",
        "Delete the objects, unless another cluster writes to the same place.",
        is_orphan=True,
    ),
    Kind(
        "copy-not-finished",
        Severity.WARNING,
        LISTING,
        "A whole segment whose copy brokers did not finish: they copied its offsets again.",
        "None if brokers delete it; else delete the objects once its offsets are in another one.",
    ),
    Kind(
        "delete-not-finished",
        Severity.WARNING,
        LISTING,
        "A segment that brokers began to delete, and that is still there.",
        _FAILING,
    ),
    Kind(
        "retention-overdue",
        Severity.WARNING,
        LISTING,
        "Segments that retention gave up before the grace period, and that nobody deletes.",
        _FAILING,
    ),
    Kind(
        "retention-unknown",
        Severity.INFO,
        LISTING,
        "Brokers do not tell how the topic is configured, nor so what its retention gave up.",
        "Give the user the ACL DescribeConfigs on the topic.",
    ),
    Kind(
        "metadata-incomplete",
        Severity.WARNING,
        LISTING,
        "The metadata topic has lost entries: which segments brokers do not know cannot be told.",
        "Set cleanup.policy and retention of __remote_log_metadata so that nothing is lost.",
    ),
    # what indexes say
    Kind(
        "offset-index-invalid",
        Severity.ERROR,
        INDEXES,
        "An offset index that is not valid, or leaves its segment. Readers take the segment whole.",
    ),
    Kind(
        "offset-index-disagrees",
        Severity.ERROR,
        INDEXES,
        "An offset index with an entry that does not point at its batch.",
    ),
    Kind(
        "time-index-invalid",
        Severity.ERROR,
        INDEXES,
        "A time index that is not valid, is out of order, or leaves its segment. Readers do not use"
        " it and read the segment from its start.",
    ),
    Kind(
        "time-index-disagrees",
        Severity.ERROR,
        INDEXES,
        "A time index with an entry that no batch has, or that does not end at the segment's"
        " largest timestamp. Readers compare an entry with the log before they use it.",
    ),
    # what the bytes say
    Kind(
        "log-unreadable",
        Severity.ERROR,
        BYTES,
        "Chunks that do not decrypt or decompress, or are not as long as the manifest says.",
    ),
    Kind(
        "crc",
        Severity.ERROR,
        BYTES,
        "A batch whose checksum is not that of its bytes.",
    ),
    Kind(
        "batch-invalid",
        Severity.ERROR,
        BYTES,
        "Bytes that are no record batch, or a batch that is cut: what follows was not checked.",
    ),
    Kind(
        "offset-order",
        Severity.ERROR,
        BYTES,
        "A batch whose offsets do not lie behind those of the batch before.",
    ),
    Kind(
        "out-of-bounds",
        Severity.ERROR,
        BYTES,
        "Batches outside of the segment's offsets: the log of another one.",
    ),
    Kind(
        "epoch",
        Severity.ERROR,
        BYTES,
        "A batch of another leader epoch than the one that owns its offset: of a dead branch.",
    ),
    Kind(
        "aborted-not-indexed",
        Severity.ERROR,
        BYTES,
        "A transaction with an abort marker in the segment that its transaction index does not"
        " know: read_committed gives aborted records.",
    ),
)

KINDS: Final = {kind.name: kind for kind in _TABLE}
"""All there are, by name."""
