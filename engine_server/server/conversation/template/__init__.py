"""What a chat template does with what it is given, found by rendering it."""
