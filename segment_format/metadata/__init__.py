"""Parses the events about tiered segments that the topic `__remote_log_metadata` contains."""
