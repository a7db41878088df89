"""Auto-registration: Spark imports every top-level `pyspark_*` module and registers its source."""

import contextlib
import sys
import warnings

try:
    from kts_source.spark.datasource import TieredKafkaDataSource as DefaultSource
except Exception as error:  # noqa: BLE001
    # Raised from here, it would disable the discovery of everyone's sources; so would a warning
    # where warnings are errors.
    with contextlib.suppress(Warning):
        warnings.warn(
            f"the data source of tiered-kafka is not available in {sys.executable}:"
            f" {type(error).__name__}: {error}. Install tiered-kafka[spark] for this interpreter,"
            " or set PYSPARK_PYTHON to the one that has it",
            RuntimeWarning,
            stacklevel=1,
        )

__all__ = ["DefaultSource"]
