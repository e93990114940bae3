"""The baseline of the demo checkpoints: a bigram model interpolated with the unigram distribution.

    p(w | v) = lam c(v, w) / c(v) + (1 - lam) (c(w) + 1) / (N + V)          (Jelinek & Mercer 1980)

``lam`` maximises the likelihood of a part that is neither counted nor scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bigram:
    """Counts of the training part: ``pairs`` (V, V) and the interpolation weight ``weight`` in [0, 1]."""

    pairs: np.ndarray
    weight: float = 0.5

    @classmethod
    def fit(cls, train: np.ndarray, tune: np.ndarray, vocabulary: int) -> Bigram:
        """Count token pairs of ``train`` (1-d ids), then fit the weight on ``tune`` (1-d ids)."""
        flat = train[:-1].astype(np.int64) * vocabulary + train[1:]
        model = cls(np.bincount(flat, minlength=vocabulary**2).reshape(vocabulary, vocabulary))
        bigram, unigram = model._parts(tune)
        low, high = 0.0, 1.0
        for _ in range(50):  # the log-likelihood is concave in the weight: bisect on its slope
            weight = (low + high) / 2
            slope = np.mean((bigram - unigram) / (weight * bigram + (1 - weight) * unigram))
            low, high = (weight, high) if slope > 0 else (low, weight)
        return cls(model.pairs, weight)

    def _parts(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        before, after = ids[:-1].astype(np.int64), ids[1:].astype(np.int64)
        rows = np.maximum(self.pairs.sum(1), 1)
        columns = self.pairs.sum(0)
        unigram = (columns[after] + 1) / (columns.sum() + len(columns))
        return self.pairs[before, after] / rows[before], unigram

    def losses(self, ids: np.ndarray) -> np.ndarray:
        """Negative log-likelihood in nats of each token of ``ids`` (1-d) but the first."""
        bigram, unigram = self._parts(ids)
        return -np.log(self.weight * bigram + (1 - self.weight) * unigram)
