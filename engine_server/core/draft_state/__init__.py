"""What is known of one request's drafts; it ends with the request."""
