"""The draft model's settings, the check that it has the model's vocabulary, and the folder of an EAGLE-3 head."""

import msgspec

from engine_server.config import ModelConfig, SpeculativeConfig
from engine_server.engine.arguments.fields import Arguments
from engine_server.engine.arguments.model_config import describe_model
from engine_server.engine.input.tokenizer import load_tokenizer
from engine_server.model_sources import resolve


def with_draft_model(
    speculative: SpeculativeConfig | None, args: Arguments, target: ModelConfig
) -> SpeculativeConfig | None:
    """Return the settings with those of the draft model, or with the folder of the head, if they name one.

    A draft model is loaded as the target is, but never rounded. Raises ValueError if it is missing or can't draft.
    """
    if speculative is None or speculative.model is None:
        return speculative
    name = f"speculative_config has model {speculative.model!r}"
    if speculative.method == "eagle3":
        try:
            # Without a look at the weights: their reader's errors have remedies.
            folder = resolve(speculative.model, load_format="dummy")
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
        return msgspec.structs.replace(speculative, head_path=str(folder))
    own = Arguments(
        model=speculative.model,
        dtype=args.dtype,
        load_format=args.load_format,
        enforce_eager=args.enforce_eager,
        language_model_only=True,
    )
    try:
        draft = describe_model(own).config
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    if draft.pooling is not None:
        raise ValueError(f"{name}, which pools; it takes a model that generates")
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"{name}, whose vocabulary has {draft.vocab_size} tokens; that of {target.model} has {target.vocab_size}, "
            "and they must be equal"
        )
    if not target.skip_tokenizer_init and not have_equal_tokens(draft, target):
        raise ValueError(
            f"{name}, whose tokenizer has other tokens than that of {target.model}; they must be equal"
        )
    draft = msgspec.structs.replace(draft, max_model_len=min(draft.max_model_len, target.max_model_len))
    return msgspec.structs.replace(speculative, draft_model_config=draft)


def have_equal_tokens(draft: ModelConfig, target: ModelConfig) -> bool:
    """Return True if each text of a token has the same id in both models. Raises ValueError without tokenizers."""
    one, other = load_tokenizer(draft), load_tokenizer(target)
    assert one is not None and other is not None
    return bool(one.get_vocab() == other.get_vocab())
