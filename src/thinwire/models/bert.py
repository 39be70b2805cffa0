"""BERT with both heads of its pre-training: Base 110,106,428 parameters, Large 336,226,108.

The decoder of the masked words shares its weight with the word embedding, as published, so that
this gradient, a fifth of Base, is complete only at the very end of backward.

Reference: Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for
Language Understanding", NAACL 2019, section 3; attention after Vaswani et al. 2017.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Bert", "bert_base", "bert_large"]


def bert_base() -> Bert:
    """12 layers of 768 units and 12 heads."""
    return Bert(width=768, depth=12, heads=12)


def bert_large() -> Bert:
    """24 layers of 1024 units and 16 heads."""
    return Bert(width=1024, depth=24, heads=16)


class Bert(nn.Module):
    """Encoder, masked-word head and next-sentence head.

    Args:
        width: units, a multiple of `heads`.
        depth: number of layers.
        heads: of each layer's attention.
        vocabulary: number of word pieces.
        length: longest sequence.
        dropout: of embeddings, attention and each half layer.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        heads: int,
        vocabulary: int = 30_522,
        length: int = 512,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(depth))
        self.pooler = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.words.weight
        self.next_sentence = nn.Linear(width, 2)

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of the words (samples, length, vocabulary) and of the next sentence (samples, 2).

        Args:
            input_ids: word pieces, (samples, length).
            token_type_ids: segment of each, 0 or 1, of the same shape; 0 by default.
        """
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.positions(places) + self.segments(segments)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        words = self.decoder(self.transform_norm(F.gelu(self.transform(x))))
        return words, self.next_sentence(pooled)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        mixed = self.dropout(scores.softmax(dim=-1)) @ value
        return self.output(mixed.transpose(1, 2).flatten(-2))


class _Layer(nn.Module):
    """Attention and two fully connected layers, each added to its input and normalised."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.attention = _Attention(width, heads, dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        inner = self.contract(F.gelu(self.expand(x)))
        return self.norm(x + self.dropout(inner))
