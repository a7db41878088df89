"""The layout of brokers' log directories, original or copied."""
