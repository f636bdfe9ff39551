"""A device whose memory is that of a GPU, as far as a test says."""

from engine_server.modeling.platform.cpu import CpuPlatform

GIB = 1 << 30


class MeteredDevice(CpuPlatform):
    """A CPU that counts memory as a GPU with 80 GiB does: what the test says that is taken, now and at the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = self.peak = 0
        # What was reserved when caches were sized.
        self.reserved: list[int] = []

    def take(self, lasting: int, transient: int = 0) -> None:
        self.peak = max(self.peak, self.taken + lasting + transient)
        self.taken += lasting

    def free_memory(self) -> int:
        return 80 * GIB - self.taken

    def cache_memory(self, utilization: float, reserved: int, with_states: bool) -> int:
        self.reserved.append(reserved)
        return 1 << 20

    def reset_peak_memory(self) -> None:
        self.peak = self.taken

    def transient_memory(self) -> int:
        return self.peak - self.taken
