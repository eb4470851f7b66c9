"""Compaction policies. Options, footprint and work are torch-free; the scorers live beside, in `*_scorer.py`."""
