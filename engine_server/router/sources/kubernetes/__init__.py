"""The source that watches LLMDeployments and EndpointSlices in a cluster."""
