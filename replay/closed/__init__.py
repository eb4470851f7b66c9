"""Closed-loop replay: the model acts against an environment made of what was recorded."""
