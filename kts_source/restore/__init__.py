"""Restores topics of a lost cluster from their tier into the log directory of a new broker, with
the same offsets.

The steps are `plan_restore`, `write_restore` and `verify_restore`. No scan imports this package.
"""
