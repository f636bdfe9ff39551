"""The router: spreads OpenAI-style requests over engine replicas, and loses none that it need not lose."""
