"""HTTP around the API: admission, bodies, errors, streams and the access log."""
