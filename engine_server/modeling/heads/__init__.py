"""What a layer gives to attention: its heads, the scores it wants, and which of the earlier tokens it sees."""
