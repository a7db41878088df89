"""Events about tiered segments in the topic `__remote_log_metadata`."""
