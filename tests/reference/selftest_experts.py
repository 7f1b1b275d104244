"""Tests of mixtures of experts; selftest.py runs them with the rest."""

import dataclasses
import math
import unittest

import numpy
import torch

from difference import relative_difference
from make_goldens import CASES, draw_weights, model_settings
from model import Model
from settings import FP64, parse_plan

PREFIX = "model.layers.0.mlp."


def make(**changes):
    """A model of one layer with experts, and rows [9, d] for its mixture."""
    settings = dataclasses.replace(model_settings(CASES["moe"]), **changes)
    generator = numpy.random.default_rng(4)
    plan = parse_plan("E")
    model = Model(settings, plan, FP64, draw_weights(settings, plan, generator))
    return model, torch.tensor(generator.standard_normal((9, settings.d)))


def set_weight(model, name, value):
    with torch.no_grad():
        model.parameters[PREFIX + name].copy_(torch.as_tensor(value, dtype=torch.float64))


def weights_of(model):
    return {
        name.removeprefix(PREFIX): parameter.detach().numpy()
        for name, parameter in model.parameters.items()
        if name.startswith(PREFIX)
    }


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b))


def swiglu_by_loops(weights, prefix, x):
    hidden = []
    rows = zip(weights[prefix + "gate_proj.weight"], weights[prefix + "up_proj.weight"])
    for gate_row, up_row in rows:
        gate = dot(gate_row, x)
        hidden.append(gate / (1 + math.exp(-gate)) * dot(up_row, x))
    return [dot(row, hidden) for row in weights[prefix + "down_proj.weight"]]


def scores_by_loops(settings, weights, x):
    logits = [dot(row, x) for row in weights["gate.weight"]]
    if settings.scoring == "SIGMOID":
        return [1 / (1 + math.exp(-logit)) for logit in logits]
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


def mixture_by_loops(settings, weights, x):
    """One token at a time: its output [d], the experts that it chose, its scores [E]."""
    scores = scores_by_loops(settings, weights, x)
    bias = weights["gate.e_score_correction_bias"]
    chosen = []
    for _ in range(settings.routed):
        best = None
        for expert in range(settings.experts):
            value = scores[expert] + float(bias[expert])
            if expert not in chosen and (best is None or value > best[0]):
                best = (value, expert)
        chosen.append(best[1])
    output = [0.0] * settings.d
    for expert in chosen:
        weight = scores[expert] / sum(scores[other] for other in chosen)
        for i, y in enumerate(swiglu_by_loops(weights, f"experts.{expert}.", x)):
            output[i] += weight * y
    if settings.shared:
        for i, y in enumerate(swiglu_by_loops(weights, "shared_experts.", x)):
            output[i] += y
    return output, sorted(chosen), scores


def balance_by_loops(settings, chosen, scores):
    """Of one sequence; from a list of the chosen experts and one of all scores per token."""
    loss = 0.0
    for expert in range(settings.experts):
        count = sum(expert in of_token for of_token in chosen)
        frequency = settings.experts * count / (settings.routed * len(chosen))
        share = sum(of_token[expert] / sum(of_token) for of_token in scores) / len(scores)
        loss += frequency * share
    return loss


class Experts(unittest.TestCase):
    def test_against_loops(self):
        for changes in (
            {},
            {"scoring": "SOFTMAX"},
            {"shared": 0, "routed": 3},
            {"shared": 1, "routed": 1},
            {"routed": 6},
        ):
            with self.subTest(**changes):
                model, x = make(**changes)
                y, mixed = model.mixture(PREFIX, x)
                weights = weights_of(model)
                tokens = [mixture_by_loops(model.settings, weights, row) for row in x.numpy()]
                outputs, chosen, scores = zip(*tokens)
                expected = torch.tensor(outputs, dtype=torch.float64)
                self.assertLess(relative_difference(y, expected).maximum, 1e-13)
                self.assertEqual(mixed.selection.tolist(), list(chosen))
                counts = [sum(e in of_token for of_token in chosen) for e in range(6)]
                self.assertEqual(mixed.counts.tolist(), counts)
                balance = balance_by_loops(model.settings, chosen, scores)
                self.assertAlmostEqual(float(mixed.balance_loss.detach()), balance, places=13)

    def test_equal_experts_are_one_ffn(self):
        model, x = make(shared=0, routed=3)
        for expert in range(1, 6):
            for matrix in ("gate_proj", "up_proj", "down_proj"):
                first = model.parameters[PREFIX + f"experts.0.{matrix}.weight"]
                set_weight(model, f"experts.{expert}.{matrix}.weight", first)
        y, _ = model.mixture(PREFIX, x)
        expected = model._swiglu(PREFIX + "experts.0.", x)
        self.assertLess(relative_difference(y, expected).maximum, 1e-13)

    def test_ties_go_to_the_lowest_experts(self):
        for scoring in ("SIGMOID", "SOFTMAX"):
            model, x = make(scoring=scoring, routed=3)
            set_weight(model, "gate.weight", torch.zeros(6, model.settings.d))
            set_weight(model, "gate.e_score_correction_bias", torch.zeros(6))
            _, mixed = model.mixture(PREFIX, x)
            self.assertEqual(mixed.selection.tolist(), [[0, 1, 2]] * len(x))
            # However uneven the counts, with even scores the loss is 1.
            self.assertAlmostEqual(float(mixed.balance_loss.detach()), 1.0, places=14)
            set_weight(model, "gate.e_score_correction_bias", [0, 0, 1, 0, 1, 0])
            self.assertEqual(model.mixture(PREFIX, x)[1].selection.tolist(), [[0, 2, 4]] * len(x))

    def test_the_bias_selects_and_does_not_weigh(self):
        for scoring in ("SIGMOID", "SOFTMAX"):
            model, x = make(scoring=scoring, experts=2, routed=1, shared=0)
            set_weight(model, "gate.weight", torch.zeros(2, model.settings.d))  # scores 0.5, 0.5
            set_weight(model, "gate.e_score_correction_bias", [-10.0, 10.0])
            y, mixed = model.mixture(PREFIX, x)
            self.assertEqual(mixed.counts.tolist(), [0, len(x)])
            expected = model._swiglu(PREFIX + "experts.1.", x)
            self.assertLess(relative_difference(y, expected).maximum, 1e-13)

    def test_an_idle_expert_has_a_gradient_of_0(self):
        model, x = make()
        set_weight(model, "gate.e_score_correction_bias", [0, 0, -10.0, 0, 0, 0])
        y, mixed = model.mixture(PREFIX, x)
        y.square().sum().backward()
        self.assertEqual(mixed.counts[2], 0)
        self.assertIsNone(model.parameters[PREFIX + "experts.2.up_proj.weight"].grad)
        busy = int(mixed.counts.argmax())
        gradient = model.parameters[PREFIX + f"experts.{busy}.up_proj.weight"].grad
        self.assertGreater(float(gradient.abs().max()), 0)
        self.assertIsNone(model.parameters[PREFIX + "gate.e_score_correction_bias"].grad)

    def test_replayed_experts_are_taken_and_counted(self):
        model, x = make()
        _, own = model.mixture(PREFIX, x)
        y, again = model.mixture(PREFIX, x, own.selection)
        self.assertEqual((again.flips, again.flip_margin), (0, 0.0))
        other = own.selection.clone()
        absent = [expert for expert in range(6) if expert not in other[3]]
        other[3, 1] = absent[-1]
        z, replayed = model.mixture(PREFIX, x, other)
        self.assertEqual(replayed.flips, 1)
        self.assertGreater(replayed.flip_margin, 0)
        moved = ((y - z).abs() > 1e-12).any(dim=1)
        self.assertEqual(torch.nonzero(moved).flatten().tolist(), [3])


if __name__ == "__main__":
    unittest.main()
