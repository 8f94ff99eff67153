"""The two networks that the course trains: one for images, which lesson 4 shows, and one for text,
which lesson 8 shows. Later lessons import them from here. PyTorch is imported when one is made."""

from __future__ import annotations

import time
from typing import Any


def cnn(channels: int, classes: int, seed: int) -> Any:
    """Return two convolutions and a linear layer, for images of 8 × 8 pixels or more."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, classes),
    )


def gpt(
    characters: int, context: int = 64, width: int = 64, heads: int = 4, blocks: int = 2
) -> Any:
    """Return a network that scores, after each character of a text, every possible next one."""
    import torch
    from torch import nn

    class Block(nn.Module):
        """Causal attention, then two linear layers; each is added to its input."""

        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
            layers = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            self.mlp = nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            """(batch, length, width) in, and the same out."""
            batch, length, _ = x.shape
            qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, heads, width // heads)
            query, key, value = qkv.permute(2, 0, 3, 1, 4)
            attention = nn.functional.scaled_dot_product_attention
            seen = attention(query, key, value, is_causal=True).transpose(1, 2)
            x = x + self.projection(seen.reshape(batch, length, width))
            return x + self.mlp(self.norm_2(x))

    class GPT(nn.Module):
        """Embeddings, blocks, and a linear layer."""

        def __init__(self) -> None:
            super().__init__()
            self.token_embedding = nn.Embedding(characters, width)
            self.position_embedding = nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

        def forward(self, text: Any) -> Any:
            """(batch, length) in, at most `context` long; (batch, length, characters) out."""
            positions = torch.arange(text.shape[1], device=text.device)
            x = self.token_embedding(text) + self.position_embedding(positions)
            return self.head(self.blocks(x))

    return GPT()


def clock(device: str) -> float:
    """Return the time (s, perf_counter) once a GPU has finished all that was submitted to it."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
