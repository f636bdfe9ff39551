"""The errors for models that can't be fetched or aren't valid."""


class ModelSourceError(ValueError):
    """The model doesn't exist or isn't valid; the message says what was looked for and where."""


class UnusableModelError(ModelSourceError):
    """What the URI names is no model that this version can use: to fetch it again would end in the same way."""
