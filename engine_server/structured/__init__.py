"""Structured output: grammars from JSON schemas, regexes, choices, EBNF and structural tags to token masks."""
