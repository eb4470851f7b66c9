"""Queueing simulation of GPU fleets serving agents under a compaction policy. Never imports torch."""
