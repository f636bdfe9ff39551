"""Sources of deployments and their addresses: flags, a file, a Kubernetes cluster."""
