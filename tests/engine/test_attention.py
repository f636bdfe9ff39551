"""The attention hook without an engine around it."""

import numpy as np
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

from engine_server.modeling.attention import IMPLEMENTATION, StepInputs, forward_context
from engine_server.modeling.torch_attention import StepAttention

LENGTHS = np.array([5, 1, 9])


def test_encoders_see_their_whole_prompt_and_nothing_of_their_neighbours() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "max_position_embeddings": 32, "initializer_range": 0.5}
    bert = BertModel(
        BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **sizes)
    )
    distilbert = DistilBertModel(DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, **sizes))
    for model in (bert.eval(), distilbert.eval()):
        prompts = [torch.randint(50, (1, length)) for length in LENGTHS]
        with torch.inference_mode():
            expected = torch.cat([model(prompt).last_hidden_state for prompt in prompts], 1)
            model.set_attn_implementation(IMPLEMENTATION)
            with forward_context(StepAttention(), flat(prompts)):
                positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
                hidden = model(torch.cat(prompts, 1), position_ids=positions).last_hidden_state
        torch.testing.assert_close(hidden, expected)


def flat(prompts: list[torch.Tensor]) -> StepInputs:
    """Prompts that are not cut; nothing is cached."""
    token_ids = torch.cat(prompts, 1)[0].numpy()
    starts = np.cumsum(LENGTHS) - LENGTHS
    positions = np.arange(len(token_ids)) - np.repeat(starts, LENGTHS)
    blocks = np.zeros((len(LENGTHS), 1), dtype=np.int32)
    return StepInputs(token_ids, positions, token_ids, starts, LENGTHS, LENGTHS, blocks)
