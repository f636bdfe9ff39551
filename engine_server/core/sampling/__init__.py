"""From logits to tokens: processors that change the logits, then a draw."""
