"""A replay every night, gated against a baseline."""
