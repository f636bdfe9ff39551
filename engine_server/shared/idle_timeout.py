"""How long a client's connection is kept between two requests."""

# Longer than load balancers keep theirs, of which Google's are the longest with 600 s: if the server closes while one
# sends a POST, the POST fails, since it must not be sent again.
DEFAULT_IDLE_TIMEOUT_SECONDS = 620
