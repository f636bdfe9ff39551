"""What operator, router, engine and `fairlead up` agree on about deployments and their pods."""
