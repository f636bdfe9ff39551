"""The pass over architectures of which transformers' modules can't compute a flat batch through the hook."""

from importlib import import_module

from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.layers.weight_layer import change_class, original_class
from engine_server.modeling.replacements.report import PassReport, Tally

# The file in the folder families for each type of model that has one.
FAMILIES = {
    "bloom": "bloom",
    "codegen": "gptj",
    "falcon": "falcon",
    "gpt_neo": "gpt_neo",
    "gptj": "gptj",
    "llama4_text": "llama4",
    "mpnet": "mpnet",
}


def implementation_for(config: PreTrainedConfig) -> str | dict[str, str]:
    """Return the attention implementation with which transformers builds a model of `config`."""
    return for_text(config, "eager" if config.model_type in FAMILIES else IMPLEMENTATION)


def for_text(config: PreTrainedConfig, implementation: str) -> str | dict[str, str]:
    """Return what sets an implementation for the text alone, where it is one of a config's parts.

    Of the others transformers chooses it.
    """
    text = config.get_text_config()
    for name in config.sub_configs:
        if getattr(config, name, None) is text:
            return {"": implementation, name: implementation}
    return implementation


def replace_attention(model: PreTrainedModel) -> PassReport:
    """Replace the classes of modules that don't call the hook as a flat batch needs it, and keep their weights."""
    tally = Tally("attention")
    if family := FAMILIES.get(model.config.model_type):
        # Imported when it is needed, as it imports the model's code.
        ours = import_module(f"engine_server.modeling.families.{family}").OURS
        for module in model.modules():
            own = ours.get(original_class(module))
            if own is not None:
                tally.replaced(original_class(module), f"our {own.__name__}")
                change_class(module, own)
        model.config._attn_implementation = IMPLEMENTATION  # so that no masks are made
    return tally.report()
