"""The pass over architectures whose attention modules don't call transformers' attention interface."""

from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.loading.report import PassReport, Tally

# Model types for which attention/model_attention.py has modules.
OWN_ATTENTION = ("bloom", "falcon", "gptj", "mpnet")


def implementation_for(config: PreTrainedConfig) -> str:
    """Return the attention implementation with which transformers builds a model of `config`."""
    return "eager" if config.model_type in OWN_ATTENTION else IMPLEMENTATION


def replace_attention(model: PreTrainedModel) -> PassReport:
    """Replace the class of attention modules that don't call the hook by ours that does, and keep their weights."""
    tally = Tally("attention")
    if model.config.model_type in OWN_ATTENTION:
        from engine_server.modeling.attention.model_attention import OURS  # imports these models' code

        for module in model.modules():
            if type(module) in OURS:
                tally.replaced(original_class(module), f"our {OURS[type(module)].__name__}")
                module.__class__ = OURS[type(module)]
        model.config._attn_implementation = IMPLEMENTATION  # so that no masks are made
    return tally.report()
