"""Loading a model: weights, sharding, fusion, and the check that it computes correctly."""
