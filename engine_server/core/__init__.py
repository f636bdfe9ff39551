"""The engine core: scheduling and computation on the device, in the caller's process for LLMEngine, else in a child."""
