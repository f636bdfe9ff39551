"""The models that the core runs: a decoder and what follows it, in parts that run alone."""
