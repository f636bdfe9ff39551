"""What a user reads when a model cannot be had."""


class ModelSourceError(ValueError):
    """The model is not there, or is not a model; the message says what was looked for and where."""
