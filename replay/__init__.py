"""Replay of recorded trajectories through a real model under compaction policies. Imports nothing by itself."""
