"""One equivariant network for any number of replicas.

Every replica passes through the same MLP, together with the request and the pool; a masked mean over
the pool tells each what the others look like; a few heads turn that into one residual per replica.
The score of a replica is its marginal cost, weighed by the context (`weighing.py`), as a logit, plus
that residual. Both changes start near zero, so an untrained policy *is* the marginal-cost policy, and
learning starts from there.

Inputs are observations in natural units. Compression and normalisation are part of the graph, with
their constants in buffers, so the served form needs nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steersman.agents.learned.config import NetworkSettings
from steersman.agents.learned.served import MASKED
from steersman.agents.learned.weighing import SHAPE, weighed_cost
from steersman.predictors.features import (
    HISTORY_FEATURES,
    POOL_FEATURES,
    REPLICA_FEATURES,
    REQUEST_FEATURES,
    REQUEST_INDEX,
)

IGNORED = (
    "hour_sin",
    "hour_cos",
    "question_bytes",
    "asked_tokens",
    "wording",
    *(name for name in HISTORY_FEATURES if name.startswith(("tenant_", "session_"))),
)
"""Request features that only the length model should read. A policy trained on part of a day would make
something of the hour, and meet other hours when it serves; what words and the past say of an answer's
length is in the predicted length."""
_UNREAD = 1e12
"""Standard deviation that is given to what must not be read: whatever comes, it is about zero."""
CLIP = 6.0
"""Compressed inputs are clipped to this many standard deviations: far outside, the guard decides."""


class Embedding(NamedTuple):
    """What the trunk knows of the replicas that may be chosen, k in all, and of their pools."""

    owner: Tensor
    """(k,): whose replica each is."""
    replicas: Tensor
    """(k, width)"""
    pooled: Tensor
    """(b, width): mean over the replicas that may be chosen."""
    gap: Tensor
    """(k,): how much dearer than the cheapest candidate, compressed; 0 for the cheapest."""


class Compress(nn.Module):
    """x → (log1p(max(x, 0) scale) − mean) / std, per feature, clipped.

    Queue lengths and token counts have long tails; step times are microseconds. `scale` brings each
    to a magnitude of about one before the logarithm. No feature that is read is ever negative.
    """

    scale: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Natural units → about unit normal, same shape."""
        return torch.clamp((self._log(x) - self.mean) / self.std, -CLIP, CLIP)

    def _log(self, x: Tensor) -> Tensor:
        return torch.log1p(torch.clamp(x, min=0.0) * self.scale)

    @torch.no_grad()
    def fit(self, rows: Tensor, ignored: Sequence[int] = ()) -> None:
        """Set the constants from (k, features) training rows.

        The ignored features, and those that never vary in these rows, come out as 0 from now on.
        """
        for i in range(rows.shape[-1]):
            positive = rows[:, i]
            positive = positive[positive > 0]
            if len(positive):
                self.scale[i] = 1.0 / positive.median()
        compressed = self._log(rows)
        self.mean.copy_(compressed.mean(dim=0))
        # The weights of a feature that never varied are what they were at random: were it to vary when
        # the policy serves, they would speak. It is not read either.
        std = compressed.std(dim=0, unbiased=False)
        self.std.copy_(torch.where(std > 1e-3, std, torch.full_like(std, _UNREAD)))
        self.std[list(ignored)] = _UNREAD


class RoutingNetwork(nn.Module):
    """Observation → one logit per head and replica, and a value for training.

    `coefficients`, weighing.SHAPE, weigh the terms of the marginal cost; 0 leaves it as it is.

    Shapes: replicas (b, n, len(REPLICA_FEATURES)), request (b, len(REQUEST_FEATURES)), pool
    (b, len(POOL_FEATURES)), mask (b, n) bool. Any b and n at least 1; n may differ between calls.
    """

    coefficients: Tensor

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, heads = settings.width, settings.heads
        self.temperature = settings.temperature
        self.sharpness = settings.sharpness
        self.residual_limit = settings.residual_limit
        context = len(REQUEST_FEATURES) + len(POOL_FEATURES)
        self.compress_replicas = Compress(len(REPLICA_FEATURES))
        self.compress_context = Compress(context)
        self.from_replica = nn.Linear(len(REPLICA_FEATURES) + 1, width)
        self.from_context = nn.Linear(context, width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.head_from_replica = nn.Linear(width, heads * width)
        self.head_from_pool = nn.Linear(width, heads * width, bias=False)
        # Not a parameter: gradient steps on noisy labels leave it alone.
        self.register_buffer("coefficients", torch.zeros(SHAPE))
        self.head_out = nn.Parameter(torch.randn(heads, width) * settings.initial_residual)
        self.value_hidden = nn.Linear(2 * width, width)
        self.value_out = nn.Linear(width, 1)
        nn.init.zeros_(self.value_out.weight)

    def embed(self, replicas: Tensor, request: Tensor, pool: Tensor, mask: Tensor) -> Embedding:
        """The shared trunk, for who may be chosen alone: a batch is padded to its largest pool."""
        owner = mask.nonzero()[:, 0]
        rows, context = replicas[mask], torch.cat([request, pool], dim=-1)
        cost = weighed_cost(rows.unsqueeze(1), context[owner], self.coefficients).squeeze(1)
        cheapest = cost.new_full((len(mask),), torch.inf).scatter_reduce(0, owner, cost, "amin")
        gap = torch.log1p(torch.relu(cost - cheapest[owner]) / self.temperature)
        known = torch.cat([self.compress_replicas(rows), gap.unsqueeze(-1)], dim=-1)
        shared = self.from_context(self.compress_context(context))
        hidden = torch.relu(self.from_replica(known) + shared[owner])
        hidden = torch.relu(self.hidden(hidden))
        total = hidden.new_zeros(len(mask), hidden.shape[-1]).index_add(0, owner, hidden)
        return Embedding(owner, hidden, total / mask.sum(dim=1, keepdim=True).clamp(min=1), gap)

    def head_logits(self, embedding: Embedding, mask: Tensor) -> Tensor:
        """(b, heads, n); `MASKED` where the mask is False."""
        mixed = self.head_from_replica(embedding.replicas)
        mixed = torch.relu(mixed + self.head_from_pool(embedding.pooled)[embedding.owner])
        heads, width = self.head_out.shape
        residual = (mixed.reshape(-1, heads, width) * self.head_out).sum(dim=-1)
        residual = self.residual_limit * torch.tanh(residual / self.residual_limit)
        logits = residual.new_full((*mask.shape, heads), MASKED)
        logits[mask] = residual - self.sharpness * embedding.gap.unsqueeze(-1)
        return logits.transpose(1, 2)

    @torch.no_grad()
    def fit_compression(self, replicas: Tensor, request: Tensor, pool: Tensor, mask: Tensor) -> None:
        """Set the constants of compression from training observations, (k, ...) each."""
        self.compress_replicas.fit(replicas[mask])
        ignored = [REQUEST_INDEX[name] for name in IGNORED]
        self.compress_context.fit(torch.cat([request, pool], dim=-1), ignored)

    @torch.no_grad()
    def shrunk(self, share: float) -> RoutingNetwork:
        """A copy that moves logits that much less from marginal cost (near enough, below the limit)."""
        other = copy.deepcopy(self)
        other.head_out.mul_(share)
        return other

    def unread_request_features(self) -> list[int]:
        """Positions in REQUEST_FEATURES of what does not reach the network: ignored, or never varied."""
        unread = self.compress_context.std[: len(REQUEST_FEATURES)] >= _UNREAD
        return [int(i) for i in torch.nonzero(unread).flatten()]

    def value_parameters(self) -> list[nn.Parameter]:
        """What only the value uses."""
        return [*self.value_hidden.parameters(), *self.value_out.parameters()]

    def state_value(self, embedding: Embedding, context: Tensor) -> Tensor:
        """(b,): expected discounted return from here, used in training only.

        It reads the trunk and does not move it: learning what a state is worth must not undo what a
        good initial policy knows.
        """
        hidden = torch.relu(self.from_context(self.compress_context(context)))
        known = torch.cat([embedding.pooled, hidden], dim=-1).detach()
        hidden = torch.relu(self.value_hidden(known))
        value: Tensor = self.value_out(hidden).squeeze(-1)
        return value

    def forward(self, replicas: Tensor, request: Tensor, pool: Tensor, mask: Tensor) -> Tensor:
        """Logits of every head, (b, heads, n): what is exported and served."""
        return self.head_logits(self.embed(replicas, request, pool, mask), mask)
