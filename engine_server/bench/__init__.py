"""`fairlead bench`: measure any OpenAI-compatible server under load, with percentiles and a saved result."""
