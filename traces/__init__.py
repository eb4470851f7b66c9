"""Recorded agent runs and request logs: reading, checking, redacting, rendering, storing. Never imports torch."""
