"""Clipping, the learning-rate schedule, Muon and AdamW, and the selection bias of experts."""

import dataclasses
import math

import torch

MUON_MATRICES = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
DECAYED_TABLES = {"embed_tokens", "lm_head"}
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    kind: str = "MUON"  # MUON: Muon for the matrices of the layers, AdamW for the rest; or ADAMW
    learning_rate: float = 3.2e-3  # at its peak
    weight_decay: float = 0.1
    clip: float = 1.0  # 0: none
    momentum: float = 0.95
    newton_schulz_steps: int = 5
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8


def role(name):
    """"q_proj" of "model.layers.3.self_attn.q_proj.weight"; "depth_scale" of itself; "up_proj" of an
    expert's, each of which is a matrix of its own; "gate" of what scores experts."""
    parts = name.split(".")
    return parts[-2] if parts[-1] == "weight" else parts[-1]


def is_trained(name):
    """By its gradient: the selection bias moves by counts alone."""
    return role(name) != "e_score_correction_bias"


def uses_muon(name, settings):
    return settings.kind == "MUON" and role(name) in MUON_MATRICES


def decay(name, settings):
    """Norms, scales, routers and gates have none."""
    return settings.weight_decay if role(name) in MUON_MATRICES | DECAYED_TABLES else 0.0


def learning_rate(step, steps, peak, warmup_fraction=0.01, final_fraction=0.1):
    """Steps count from 1: a linear warm-up, then a cosine that ends at final_fraction."""
    warmup = max(1, math.floor(warmup_fraction * steps + 0.5))
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / (steps - warmup)
    return peak * (final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress)))


def gradient_norm(gradients):
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def clip_scale(norm, clip):
    return min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0


def orthogonalise(x, steps):
    """Newton-Schulz: pulls all singular values of a matrix towards 1. Tall matrices go through
    their transpose, so that the product in the middle is the small one."""
    a, b, c = NEWTON_SCHULZ
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def initial_state(parameters, settings):
    """NAME.momentum, or NAME.first and NAME.second, all 0."""
    state = {}
    for name, parameter in parameters.items():
        if not is_trained(name):
            continue
        kinds = ["momentum"] if uses_muon(name, settings) else ["first", "second"]
        for kind in kinds:
            state[f"{name}.{kind}"] = torch.zeros_like(parameter)
    return state


@torch.no_grad()
def update(parameters, gradients, state, settings, rate, step):
    """One step in place, number `step` from 1. Gradients are as they were before clipping. The
    selection bias stays: see update_selection_bias."""
    scale = clip_scale(gradient_norm(gradients), settings.clip)
    for name, parameter in parameters.items():
        if not is_trained(name):
            continue
        gradient = gradients[name] * scale
        parameter.mul_(1 - rate * decay(name, settings))
        if uses_muon(name, settings):
            parameter.sub_(rate * _muon(gradient, state[f"{name}.momentum"], settings))
        else:
            first, second = state[f"{name}.first"], state[f"{name}.second"]
            parameter.sub_(rate * _adam(gradient, first, second, settings, step))


@torch.no_grad()
def update_selection_bias(parameters, counts, rate):
    """After a step. counts: layer index -> tokens of its global batch that each expert got. An expert
    that got fewer than the mean is preferred by `rate` more from now on."""
    for index, of_layer in counts.items():
        bias = parameters[f"model.layers.{index}.mlp.gate.e_score_correction_bias"]
        # Of whole numbers, so that an expert that got the mean stays where it is.
        direction = torch.sign(of_layer.sum() - of_layer * len(of_layer))
        bias.add_(rate * direction.to(bias.dtype))


def _muon(gradient, momentum, settings):
    momentum.mul_(settings.momentum).add_(gradient)
    direction = orthogonalise(gradient + settings.momentum * momentum, settings.newton_schulz_steps)
    return 0.2 * math.sqrt(max(gradient.shape)) * direction


def _adam(gradient, first, second, settings, step):
    first.mul_(settings.beta1).add_((1 - settings.beta1) * gradient)
    second.mul_(settings.beta2).add_((1 - settings.beta2) * gradient.square())
    unbiased_first = first / (1 - settings.beta1**step)
    unbiased_second = second / (1 - settings.beta2**step)
    return unbiased_first / (unbiased_second.sqrt() + settings.epsilon)
