"""The form of a model's answers, derived from what its chat template prints, and used only with proof."""
