"""Whether an answer is right: one judge per scorer, each a function of label, answer and context. No torch."""
