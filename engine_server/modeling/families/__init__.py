"""Modules of ours for one family of models each, whose own can't compute a flat batch through the attention hook.

`OURS` of a file maps transformers' classes to ours, which have the same attributes.
"""
