"""The kinds of modules that we replace by ours, a file for each, and the one way to apply them."""
