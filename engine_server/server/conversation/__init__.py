"""Conversations as models write them: the layout of a model's answers, and what follows from it for one answer."""
