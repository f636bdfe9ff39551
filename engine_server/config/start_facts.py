"""Facts that are known once the model is loaded."""

import msgspec

TEXT_ALONE = "the model takes text alone"


class StartFacts(msgspec.Struct, frozen=True):
    """Facts that the first rank finds out during the start."""

    # Of each kind of attention without a window, or of every kind if all have windows; 0: there is no cache.
    num_blocks: int
    # Of the KV cache; 0: there is none.
    bytes_per_token: int
    # Results are bitwise independent of batch composition.
    batch_invariant: bool
    # The kernels in use, for people.
    kernels: str
    # Bytes of the device by part of the engine.
    memory: dict[str, int]
    # Number of states of recurrent layers, and the bytes of each; 0: the model has no recurrent layers.
    num_state_slots: int = 0
    bytes_per_state: int = 0
    # Why the model takes no pictures; empty if it takes them.
    refuses_pictures: str = TEXT_ALONE
