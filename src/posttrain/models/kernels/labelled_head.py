"""Compute the output head only where a token carries loss.

The head is most of a small model's arithmetic: SmolLM2-135M multiplies 576 by 49,152 for every token, although only the
answers' tokens are trained. A forward pre-hook on the head keeps the hidden states of those positions and drops the
rest before the product. The call still goes through the model that DDP or FSDP wrapped.

If the head is frozen and the model returns its logits unchanged, the hook passes no positions on, and
`frozen_head_scores` computes the scores from the hidden states during the call. Otherwise the model computes the logits
of the positions that are left: what it does to them afterwards (scaling, soft-capping) is elementwise, so it stays
correct.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.compiled_layers import as_written
from posttrain.models.kernels.frozen_head import Scores, frozen_head_scores, smoothed
from posttrain.models.kernels.packing import pack, row_lengths
from posttrain.models.kernels.router_balance import RouterBalance
from posttrain.models.weights.sharding import plain_class


class LabelledHead:
    """Attach once to a causal language model; `scores` then computes log-probabilities through it."""

    def __init__(self, model: Any, *, packed: bool = False, routers: RouterBalance | None = None) -> None:
        """Attach to `model`.

        Args:
            packed: whether rows go through the model as one sequence, without their padding.
            routers: attached to `model` too; computes their loss in the passes that have a gradient.
        """
        self._model, self._packs, self._routers = model, packed, routers
        self._head = model.get_output_embeddings()
        self._wanted: _Wanted | None = None
        self._found: Scores | None = None
        self._is_frozen = _is_plain_and_frozen(self._head) and _gives_its_logits_as_they_are(model, self._head)
        self._handle = self._head.register_forward_pre_hook(self._keep_labelled)

    def token_losses(
        self, model: Any, input_ids: torch.Tensor, labels: torch.Tensor, *, smoothing: float = 0.0
    ) -> torch.Tensor:
        """Cross-entropy of each labelled token in nats, shape [labelled], float32; arguments as in `scores`."""
        return -self.scores(model, input_ids, labels, smoothing=smoothing)[0]

    def scores(
        self,
        model: Any,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        *,
        temperatures: torch.Tensor | None = None,
        entropies: bool = False,
        smoothing: float = 0.0,
    ) -> Scores:
        """log p of each labelled token in row-major order, and the entropy at its position: shape [labelled], in nats.

        Args:
            model: the model that this is attached to, or its wrapper.
            input_ids: shape [batch, seq], padded on the right. No attention mask is needed: under causal attention no
                token sees the padding after it.
            labels: shape [batch, seq]; `labels[b, t]` is the token that position t has to predict, or -100.
            temperatures: divisors of the logits of each labelled token, shape [labelled]; 1 if not given.
            entropies: whether to compute them too, without gradient; None is returned in their place otherwise.
            smoothing: ε of label smoothing, as in `frozen_head_scores`.
        """
        inputs: dict[str, Any] = {}
        if self._packs:
            packed = pack(input_ids, labels)
            input_ids, labels, inputs, counts = packed.input_ids, packed.labels, packed.inputs(), packed.rows
        else:
            counts = torch.arange(labels.shape[1], device=labels.device) < row_lengths(labels).unsqueeze(1)
        wanted = _Wanted(labels != IGNORED_LABEL, labels, temperatures, entropies, smoothing)
        balanced = nullcontext() if self._routers is None else self._routers.counting(counts.float())
        passing = balanced if torch.is_grad_enabled() else as_written(self._model)
        with self._asked(wanted), passing:
            logits = model(input_ids=input_ids, use_cache=False, **inputs).logits
            found, self._found = self._found, None
        if found is None:
            return wanted.scores_of(logits)
        # A sharded model gathers its weights again when the gradient reaches its output, which has no rows here.
        return found[0] + logits.sum(), found[1]

    def detach(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    @contextmanager
    def _asked(self, wanted: "_Wanted") -> Iterator[None]:
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def _keep_labelled(self, head: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if self._wanted is None:
            return arguments
        hidden, *rest = arguments
        labelled = hidden[self._wanted.mask]
        if self._is_frozen:
            # Compute inside the call, because a wrapper may keep the weights elsewhere while its model is not called.
            self._found, labelled = self._wanted.scores_by(head, labelled), labelled[:0]
        return labelled, *rest


@dataclass(frozen=True)
class _Wanted:
    """What a call of `scores` asks for; `mask` and `labels` are of shape [batch, seq]."""

    mask: torch.Tensor
    labels: torch.Tensor
    temperatures: torch.Tensor | None
    entropies: bool
    smoothing: float

    def scores_by(self, head: nn.Linear, hidden: torch.Tensor) -> Scores:
        """Scores from the hidden states where `mask` is true, shape [labelled, width]."""
        labels, hidden = self.labels[self.mask], hidden.to(head.weight.dtype)
        options: dict[str, Any] = {"entropies": self.entropies, "smoothing": self.smoothing}
        return frozen_head_scores(hidden, head.weight, head.bias, labels, self.temperatures, **options)

    def scores_of(self, logits: torch.Tensor) -> Scores:
        """Scores from the logits where `mask` is true, shape [labelled, vocabulary]."""
        scores = logits.float() if self.temperatures is None else logits.float() / self.temperatures.unsqueeze(-1)
        spread = torch.log_softmax(scores, dim=-1)
        chosen = smoothed(spread, self.labels[self.mask].unsqueeze(-1), self.smoothing)
        if not self.entropies:
            return chosen, None
        with torch.no_grad():
            return chosen, -(spread.exp() * spread).sum(-1)


def _is_plain_and_frozen(head: nn.Module) -> bool:
    return plain_class(head) is nn.Linear and not any(parameter.requires_grad for parameter in head.parameters())


def _gives_its_logits_as_they_are(model: Any, head: nn.Linear) -> bool:
    """Whether the model returns the head's output unchanged, tried with numbers that any scaling or capping changes."""
    device = head.weight.device
    ramp = torch.linspace(-1e3, 1e3, head.out_features, device=device).to(head.weight.dtype)
    handle = head.register_forward_hook(lambda module, inputs, output: ramp.expand(*output.shape[:-1], -1))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), as_written(model):
            logits = model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=device), use_cache=False).logits
    finally:
        handle.remove()
        model.train(was_training)
    return bool((logits.float() == ramp.float()).all())
