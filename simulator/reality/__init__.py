"""The simulator against runs recorded on real machines. The records are not part of the package."""
