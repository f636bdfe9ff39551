"""Errors of a model's processor of pictures."""


class UnsupportedPicturesError(ValueError):
    """Pictures that can't be processed for a model; the message says why."""
