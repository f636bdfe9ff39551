"""Pictures in prompts: each is decoded and processed in a fork of a process kept for them."""
