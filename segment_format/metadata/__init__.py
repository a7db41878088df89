"""The broker's own record of what is in the tier: values and updates of `__remote_log_metadata`."""
