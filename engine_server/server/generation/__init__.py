"""Generation of an answer: prompts in, typed events out."""
