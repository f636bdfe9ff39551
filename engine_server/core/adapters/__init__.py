"""The adapters of a core: which are in memory, and which are in a slot of the device."""
