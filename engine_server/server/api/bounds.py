"""Bounds on a request's work."""

# Inputs of a request to a pooling model: texts, or pairs of texts.
MAX_INPUTS = 1024
# Tokens of all inputs whose hidden states are returned, each a row of numbers.
MAX_STATES = 32_768
# Characters of a text to tokenize.
MAX_TOKENIZED_CHARACTERS = 4 << 20
# Tokens to convert to text.
MAX_DETOKENIZED_TOKENS = 1 << 20
