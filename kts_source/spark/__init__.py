"""The Spark data source: thin glue between Spark's Python data source API and the scan."""
