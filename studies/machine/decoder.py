"""A decoder in plain PyTorch, its layers as torchtitan writes them: fused norms, rotary positions, SDPA, SwiGLU."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from machine.jobs import Shape

Tensor = Any
EPSILON, THETA = 1e-5, 500000.0


class Norm(nn.Module):
    """An RMS norm in the type of its input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed input."""
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), EPSILON)


class Layer(nn.Module):
    """Attention and MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.head_dim
        self.attention_norm, self.mlp_norm = Norm(shape.hidden), Norm(shape.hidden)
        self.wq = nn.Linear(shape.hidden, shape.heads * width, bias=shape.qkv_bias)
        self.wk = nn.Linear(shape.hidden, shape.kv_heads * width, bias=shape.qkv_bias)
        self.wv = nn.Linear(shape.hidden, shape.kv_heads * width, bias=shape.qkv_bias)
        self.wo = nn.Linear(shape.heads * width, shape.hidden, bias=False)
        self.gate = nn.Linear(shape.hidden, shape.ffn_hidden, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn_hidden, bias=False)
        self.down = nn.Linear(shape.ffn_hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the layer's output."""
        x = x + self.attend(self.attention_norm(x), cosine, sine)
        normed = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    def attend(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return causal attention over grouped key and value heads."""
        batch, tokens, _ = x.shape
        query, key, value = (
            each.view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)
            for each in (self.wq(x), self.wk(x), self.wv(x))
        )
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        grouped = self.shape.heads != self.shape.kv_heads
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.wo(out.transpose(1, 2).reshape(batch, tokens, -1))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return heads turned by the positions of their tokens, in the type that they have."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype)


class Decoder(nn.Module):
    """A language model that returns its loss; activations between layers are bf16."""

    def __init__(self, shape: Shape, *, recompute: bool) -> None:
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = Norm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss of the next tokens."""
        half = self.shape.head_dim // 2
        rate = THETA ** -(torch.arange(half, device=tokens.device) / half)
        angle = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * rate
        cosine, sine = angle.cos(), angle.sin()
        x = self.embedding(tokens).to(torch.bfloat16)
        for layer in self.layers:
            x = checkpoint(layer, x, cosine, sine, use_reentrant=False) if self.recompute else layer(x, cosine, sine)
        logits = self.head(self.norm(x))[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
