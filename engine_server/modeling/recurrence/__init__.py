"""Recurrent layers: their states, and the functions that carry a state from one step's tokens to the next."""
