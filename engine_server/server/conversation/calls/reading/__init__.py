"""The reading of calls in each form, as their text arrives."""
