"""Expressions of PromQL, which give no value where a rate or a denominator is zero, instead of NaN or infinity.

Series of engines have the labels `namespace`, `llmdeployment` and `pod` from the chart's PodMonitor; those of the
operator have `namespace` and `name`; those of the router have `model`, which is NAMESPACE/NAME, or `namespace` and
`deployment`.
"""

# The range that Grafana derives from the scrape interval and the resolution of the graph.
WINDOW = "$__rate_interval"
# The LLMDeployments that a dashboard's variables select, by the labels of each component.
IN_ENGINES = 'namespace=~"$namespace", llmdeployment=~"$model"'
IN_OPERATOR = 'namespace=~"$namespace", name=~"$model"'
IN_ROUTER = 'model=~"$namespace/$model"'
IN_ENDPOINTS = 'namespace=~"$namespace", deployment=~"$model"'


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


def by_model_of_engines(expression: str) -> str:
    """Return values by namespace and LLMDeployment with the operator's labels."""
    return total(f'label_replace({expression}, "name", "$1", "llmdeployment", "(.*)")', "namespace", "name")


def by_model_of_router(expression: str) -> str:
    """Return values by model with the operator's labels."""
    named = f'label_replace({expression}, "name", "$1", "model", ".*/(.*)")'
    return total(f'label_replace({named}, "namespace", "$1", "model", "(.*)/.*")', "namespace", "name")
