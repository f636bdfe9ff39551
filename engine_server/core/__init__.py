"""The engine core: what runs on the device. In the caller's process for LLMEngine, in a child for AsyncLLM."""
