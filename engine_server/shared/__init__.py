"""What the HTTP listeners of the router and of the engine server have in common, with one meaning in both.

These modules stand on the contract alone; whatever one listener does otherwise belongs to that listener.
"""
