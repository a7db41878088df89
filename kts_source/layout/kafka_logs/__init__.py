"""The log directories of brokers: their disks, or copies of them."""
