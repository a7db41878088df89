"""The files beside a log segment: three indexes, producer snapshot, leader epoch checkpoint."""
