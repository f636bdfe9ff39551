"""The names, formats and timings that more than one part of Fairlead must agree on.

The engine server, the router, the operator and `fairlead up` import these modules; they import msgspec at most.
"""
