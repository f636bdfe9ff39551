"""Expressions of PromQL, which give no value where a rate or a denominator is zero, instead of NaN or infinity.

Series about an LLMDeployment have the label `model`, which is its NAMESPACE/NAME: those of operator and router, and by
the chart's monitors those of engines. Their label `namespace` may be any other, where Prometheus replaces it.
"""

# The range that Grafana derives from the scrape interval and the resolution of the graph.
WINDOW = "$__rate_interval"
# The LLMDeployments that a dashboard's variables select.
SELECTED = 'model=~"$namespace/$model"'


def series(metric: str, *matchers: str) -> str:
    """Return a selector of series."""
    return f"{metric}{{{', '.join(matchers)}}}" if matchers else metric


def total(expression: str, *labels: str) -> str:
    """Return the sum for each combination of `labels`."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def largest(expression: str, *labels: str) -> str:
    """Return the maximum for each combination of `labels`."""
    return f"max by ({', '.join(labels)}) ({expression})" if labels else f"max({expression})"


def rate(counter: str, *labels: str, window: str = WINDOW) -> str:
    """Return a counter's increase per second, summed for each combination of `labels`."""
    return total(f"rate({counter}[{window}])", *labels)


def quantile(share: float, histogram: str, *labels: str, matchers: str) -> str:
    """Return a quantile of a histogram for each combination of `labels`; none without observations."""
    buckets = rate(series(f"{histogram}_bucket", matchers), "le", *labels)
    return f"histogram_quantile({share}, {buckets}) >= 0"


def mean(histogram: str, *labels: str, matchers: str) -> str:
    """Return the mean of the values that a histogram observed."""
    return ratio(
        rate(series(f"{histogram}_sum", matchers), *labels),
        rate(series(f"{histogram}_count", matchers), *labels),
    )


def ratio(part: str, whole: str) -> str:
    """Return part / whole; 0 where `part` has no series, none where `whole` is 0."""
    return f"({part} or {whole} * 0) / ({whole} > 0)"


def or_zero(expression: str) -> str:
    """Return the value of an expression without labels, 0 if it has none."""
    return f"{expression} or vector(0)"


def with_namespace(expression: str) -> str:
    """Return values by model with the namespace as a label of its own."""
    return f'label_replace({expression}, "namespace", "$1", "model", "(.*)/.*")'


def by_model(expression: str, *labels: str) -> str:
    """Return the sum for each model, by namespace and name, and each combination of `labels`."""
    named = f'label_replace({expression}, "name", "$1", "model", ".*/(.*)")'
    return total(with_namespace(named), "namespace", "name", *labels)
