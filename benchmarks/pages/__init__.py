"""Pages of docs/ that are written from measured figures."""
