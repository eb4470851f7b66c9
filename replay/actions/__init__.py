"""What a model's words do: the grammars of tool calls, and how much two actions agree. No torch."""
