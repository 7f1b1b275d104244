"""How far two tensors are from each other."""

import dataclasses
import math

from optimizer import MUON_MATRICES, role

KINDS = {
    "embed_tokens": "embedding",
    "lm_head": "head",
    "depth_router": "depth router",
    "depth_scale": "depth scale",
    "gate": "expert gate",
    "e_score_correction_bias": "selection bias",
}
GRADIENT_FLOORS = {"depth scale": 1e-2, "depth router": 1e-3}
OTHER_GRADIENT_FLOOR = 1e-4


def kind(name):
    if role(name) in MUON_MATRICES:
        if ".mlp.experts." in name:
            return "experts"
        return "attention" if ".self_attn." in name else "ffn"
    return KINDS.get(role(name), "norm")


@dataclasses.dataclass(frozen=True)
class Difference:
    maximum: float  # max|a - b| / max|b|
    l2: float  # |a - b| / |b|


def relative_difference(a, b, floor_norm=0.0):
    """Of a from b, which is the truth. Where |b| < floor_norm, b counts as a tensor of that norm
    whose elements all have the same size."""
    a, b = a.detach().double(), b.detach().double()
    if a.shape != b.shape:
        raise ValueError(f"shapes {list(a.shape)} and {list(b.shape)} differ")
    gap = a - b
    largest, norm = float(b.abs().max()), float(b.norm())
    if norm < floor_norm:
        largest, norm = floor_norm / math.sqrt(b.numel()), floor_norm
    return Difference(_ratio(float(gap.abs().max()), largest), _ratio(float(gap.norm()), norm))


def gradient_floor_norm(name, norm_of_all):
    """For gradients in FP32: sums that mostly cancel are not measured against what is left."""
    return GRADIENT_FLOORS.get(kind(name), OTHER_GRADIENT_FLOOR) * norm_of_all


def _ratio(gap, size):
    if math.isnan(gap):
        return math.inf
    return gap / size if size > 0 else (0.0 if gap == 0 else math.inf)
