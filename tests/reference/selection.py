"""What layers select: tokens in a sparse layer, experts in a mixture."""

import dataclasses

import torch


def select_top_k(adjusted, k):
    """Ascending indices of the k largest along the last dim; of equal ones the lower index goes
    first."""
    order = torch.sort(adjusted, dim=-1, descending=True, stable=True).indices
    return order[..., :k].sort(dim=-1).values


def select_causal(logits):
    """Ascending indices of the tokens that enter by their own logit; any number, none included."""
    return torch.nonzero(logits >= 0).flatten()


@dataclasses.dataclass
class Routed:
    """What a sparse layer decided for one sequence."""

    selection: torch.Tensor  # [m] int64, ascending
    alignment_loss: torch.Tensor  # sum over all L tokens
    margin: float  # how far the closest token is from the other decision
    flips: int  # selected tokens of a replayed selection that this layer would not have selected
    flip_margin: float  # how far the worst of them is from being selected


@dataclasses.dataclass
class Mixed:
    """What a mixture of experts decided for the m tokens that it saw of one sequence."""

    selection: torch.Tensor  # [m, routed] int64, ascending for each token
    counts: torch.Tensor  # [E] int64, tokens that each expert got
    balance_loss: torch.Tensor  # before its coefficient
    margin: float
    flips: int
    flip_margin: float


@dataclasses.dataclass
class Selection:
    """What the layers of a model chose, or are to choose instead of what they would."""

    tokens: dict  # sparse layer index -> [B, k] int64, or [k] of one sequence
    experts: dict  # index of a layer with experts -> [B, m, routed] int64, or [m, routed]

    def sequence(self, b):
        return Selection(
            {index: rows[b] for index, rows in self.tokens.items()},
            {index: rows[b] for index, rows in self.experts.items()},
        )

    def tensors(self):
        """By the names of a dump."""
        tokens = {f"model.layers.{i}.depth_selection": rows for i, rows in self.tokens.items()}
        experts = {f"model.layers.{i}.expert_selection": rows for i, rows in self.experts.items()}
        return tokens | experts


def stacked(per_sequence):
    """Layer index -> the selections of all sequences."""
    return {
        index: torch.stack([of_sequence[index].selection for of_sequence in per_sequence])
        for index in per_sequence[0]
    }
