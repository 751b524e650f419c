"""Modules of users for `examples/trace_module.py`: a GPT, a vision transformer, a mixture of experts."""

import torch
from torch import nn
from torch.nn import functional

HIDDEN, HEADS, TOKENS, BATCH, WORDS, EXPERTS, CAPACITY = 64, 4, 32, 2, 211, 4, 24


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x):
        batch, tokens, _ = x.shape
        parts = self.qkv(self.ln_1(x)).view(batch, tokens, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        scores = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.proj(scores.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.h = nn.ModuleList(GptBlock() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, words, following):
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1], device=words.device))
        for block in self.h:
            x = block(x)
        return functional.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), following.flatten())


class Vision(nn.Module):
    """Patches by a convolution, PyTorch's own encoder, a class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, kernel_size=8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, HIDDEN))
        self.positions = nn.Parameter(torch.zeros(1, 17, HIDDEN))
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 4 * HIDDEN, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, images, classes):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return functional.cross_entropy(self.head(self.encoder(x)[:, 0]), classes)


class Experts(nn.Module):
    """Each token goes to its best expert, which takes so many; what is beyond them is dropped."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.inner = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, 2 * HIDDEN))
        self.outer = nn.Parameter(torch.zeros(EXPERTS, 2 * HIDDEN, HIDDEN))

    def forward(self, x):
        gates, chosen = self.router(x).softmax(-1).max(-1)
        mask = functional.one_hot(chosen, EXPERTS)
        place = (mask.cumsum(0) - 1) * mask
        taken = functional.one_hot(place.clamp(max=CAPACITY), CAPACITY + 1)[..., :CAPACITY] * mask.unsqueeze(-1)
        slots = torch.einsum("tec,th->ech", taken.to(x.dtype), x)
        done = torch.bmm(functional.relu(torch.bmm(slots, self.inner)), self.outer)
        return torch.einsum("tec,ech->th", taken * gates[:, None, None], done)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.experts = nn.RMSNorm(HIDDEN), Experts()

    def forward(self, x):
        x = x.flatten(0, 1)
        return (x + self.experts(self.norm(x))).square().mean()


def gpt():
    words = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    return Gpt(), (words, words)


def vision():
    return Vision(), (torch.zeros(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.long))


def mixture():
    return Mixture(), (torch.zeros(BATCH, TOKENS, HIDDEN),)


def data_dependent():
    class Chosen(nn.Module):
        def forward(self, x):
            return x[x > 0].sum()

    return Chosen(), (torch.zeros(8),)
