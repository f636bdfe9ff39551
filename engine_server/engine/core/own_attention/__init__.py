"""Attention of the architectures whose modules don't call transformers' attention interface, a file each.

A file is named after its model type, and its OURS says which class stands in for which.
"""

from importlib import import_module

from torch import nn

MODEL_TYPES = ("bloom", "falcon", "gptj")


def replace_attention(model: nn.Module, model_type: str) -> None:
    """Let every attention module of a model of MODEL_TYPES call the hook; its weights stay as they are."""
    theirs, ours = import_module(f"{__name__}.{model_type}").OURS
    for module in model.modules():
        if type(module) is theirs:
            module.__class__ = ours
