"""Hot operations of compaction. Nothing is imported here: transformers probes for a package of this name."""
