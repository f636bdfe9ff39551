"""What router and engine server say to each other and to their clients over HTTP."""
