"""The pass over architectures of which transformers' modules can't compute a flat batch through the hook."""

from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.layers.weight_layer import change_class, original_class
from engine_server.modeling.replacements.report import PassReport, Tally

# Model types for which the folder families has modules.
OWN_ATTENTION = ("bloom", "codegen", "falcon", "gpt_neo", "gptj", "llama4_text", "mpnet")


def implementation_for(config: PreTrainedConfig) -> str:
    """Return the attention implementation with which transformers builds a model of `config`."""
    return "eager" if config.model_type in OWN_ATTENTION else IMPLEMENTATION


def replace_attention(model: PreTrainedModel) -> PassReport:
    """Replace the classes of modules that don't call the hook as a flat batch needs it, and keep their weights."""
    tally = Tally("attention")
    if model.config.model_type in OWN_ATTENTION:
        from engine_server.modeling.families import llama4, model_attention  # import these models' code

        ours = model_attention.OURS | llama4.OURS
        for module in model.modules():
            own = ours.get(original_class(module))
            if own is not None:
                tally.replaced(original_class(module), f"our {own.__name__}")
                change_class(module, own)
        model.config._attn_implementation = IMPLEMENTATION  # so that no masks are made
    return tally.report()
