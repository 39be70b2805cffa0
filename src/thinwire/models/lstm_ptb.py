"""The large word-level LSTM for the Penn Treebank: 66,034,000 parameters, 1.8G MACs for 35 words.

Reference: Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization",
arXiv:1409.2329, section 4.1: two layers of 1500 units, dropout 0.65, 35 words unrolled.
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["LSTMPTB"]


class LSTMPTB(nn.Module):
    """Embedding, two LSTM layers, a classifier over the vocabulary that shares nothing.

    Args:
        vocabulary: number of words.
        width: units of the embedding and of each layer.
        dropout: of what goes from one layer to the next, 0 up to 1.
    """

    def __init__(self, vocabulary: int = 10_000, width: int = 1500, dropout: float = 0.65):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=dropout, batch_first=True)
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Words (samples, length) to scores (samples, length, vocabulary), state zero at first."""
        x, _ = self.lstm(self.dropout(self.embedding(words)))
        return self.classifier(self.dropout(x))
