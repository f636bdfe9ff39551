"""Settings of health checks, traces and profiles."""

import msgspec


class ObservabilityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Health checks, traces and profiles."""

    # Seconds without progress after which a core counts as hung.
    hang_timeout: float = 300.0
    # The folder for torch.profiler's traces.
    torch_profiler_dir: str | None = None
    # The URL that spans are posted to.
    otlp_traces_endpoint: str | None = None
