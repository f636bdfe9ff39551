"""The router beside nginx's proxy and other routers: requests/s, latency, CPU time and memory."""
