"""Restores topics of a lost cluster from a tier into the log directory of a new broker, with
unchanged offsets.

The steps are `plan_restore`, `write_restore`, `verify_restore` and `commit_restore`. No scan
imports this package.
"""
