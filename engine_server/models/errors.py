"""The error for a model that can't be fetched or isn't valid."""


class ModelSourceError(ValueError):
    """The model doesn't exist or isn't valid; the message says what was looked for and where."""
