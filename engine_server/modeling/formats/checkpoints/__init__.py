"""Readers of quantised checkpoints: one module for each form in which files store weights.

A new form is a module with its `Scheme`, a line in each table of checkpoint.py, and its settings in
model_sources/settings_tables.py. Numbers of a new kind are a codec in formats/codecs.py. A kernel for them is a line in
the table of its device's products; until there is one, weights are dequantised once, and the log says so.
"""
