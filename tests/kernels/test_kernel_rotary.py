"""Rotary embeddings, against transformers' own."""

import pytest
import torch
from torch import Tensor
from transformers.models.cohere2.modeling_cohere2 import apply_rotary_pos_emb as cohere
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb as glm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama

from engine_server.modeling.kernels.rotary import rotate

TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def partial_llama(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Rotate the first dims of a head, as in GPT-NeoX."""
    width = cos.shape[-1]
    turned = llama(query[..., :width], key[..., :width], cos, sin)
    return [torch.cat([new, old[..., width:]], -1) for new, old in zip(turned, (query, key), strict=True)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("turn", "interleaved", "dim", "pairs"),
    [
        (llama, False, 64, 32),
        (llama, False, 6, 3),
        (partial_llama, False, 80, 10),
        (glm, True, 96, 24),
        (glm, True, 64, 32),
        (cohere, True, 40, 20),
    ],
)
def test_rotary_kernel_equals_torch(
    device: torch.device, turn, interleaved: bool, dim: int, pairs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    for tokens, heads, kv_heads in [(1, 1, 1), (3, 7, 3), (1, 40, 40)]:
        # The layout of one product of queries and keys: a token's heads are contiguous, with others in between.
        joined = torch.randn(1, tokens, heads + kv_heads + 1, dim).to(dtype)
        query, key = joined[:, :, :heads].transpose(1, 2), joined[:, :, heads:-1].transpose(1, 2)
        angles = 6 * torch.rand(1, tokens, pairs)
        angles = angles.repeat_interleave(2, -1) if turn is cohere else angles.repeat(1, 1, 2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        one = slice(None, None, 2) if turn is cohere else slice(pairs)
        given = [part[0].transpose(0, 1).to(device) for part in (query, key)]
        turned = rotate(*given, *(part[0, :, one].to(device) for part in (cos, sin)), interleaved)
        for new, expected in zip(turned, turn(query, key, cos, sin), strict=True):
            assert new.dtype == dtype
            torch.testing.assert_close(
                new.cpu(), expected[0].transpose(0, 1), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
            )
