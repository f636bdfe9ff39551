"""Health, traces and profiles."""

import msgspec


class ObservabilityConfig(msgspec.Struct, frozen=True, kw_only=True):
    hang_timeout: float = 300.0  # seconds without progress after which a core counts as hung
    torch_profiler_dir: str | None = None  # the folder for traces
    otlp_traces_endpoint: str | None = None  # the URL that spans are posted to
