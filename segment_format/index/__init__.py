"""Side files of a log segment: indexes, producer snapshot, leader epoch checkpoint."""
