"""Tests of optimizer.py and difference.py; selftest.py runs them with the rest."""

import math
import unittest

import torch

import optimizer
from difference import relative_difference
from make_goldens import CASES, model_settings
from model import parameter_shapes
from settings import parse_plan


class Optimizers(unittest.TestCase):
    def test_newton_schulz_is_a_polynomial_of_the_singular_values(self):
        generator = torch.Generator().manual_seed(1)
        for rows, columns in ((5, 9), (9, 5), (6, 6)):
            x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
            left, values, right = torch.linalg.svd(x, full_matrices=False)
            values = values / (math.sqrt(float((values**2).sum())) + 1e-7)
            for _ in range(5):
                values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
            expected = left @ values.diag() @ right
            actual = optimizer.orthogonalise(x, 5)
            self.assertLess(relative_difference(actual, expected).maximum, 1e-12)

    def test_adamw_against_torch(self):
        rules = optimizer.OptimizerSettings(kind="ADAMW", clip=0.0)
        generator = torch.Generator().manual_seed(1)
        names = ["lm_head.weight", "model.norm.weight"]
        ours = {n: torch.randn(4, 3, dtype=torch.float64, generator=generator) for n in names}
        theirs = {name: tensor.clone().requires_grad_() for name, tensor in ours.items()}
        groups = [
            {"params": [theirs[names[0]]], "weight_decay": 0.1},
            {"params": [theirs[names[1]]], "weight_decay": 0.0},
        ]
        other = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95), eps=1e-8)
        state = optimizer.initial_state(ours, rules)
        for step in range(1, 5):
            for parameter in theirs.values():
                parameter.grad = torch.randn(4, 3, dtype=torch.float64, generator=generator)
            gradients = {name: parameter.grad for name, parameter in theirs.items()}
            optimizer.update(ours, gradients, state, rules, 0.02, step)
            other.step()
        for name in names:
            self.assertLess(relative_difference(ours[name], theirs[name].detach()).maximum, 1e-13)

    def test_muon_over_two_steps(self):
        rules = optimizer.OptimizerSettings(clip=1.0)
        name = "model.layers.0.mlp.up_proj.weight"
        generator = torch.Generator().manual_seed(2)
        first, second, start = torch.randn(3, 8, 3, dtype=torch.float64, generator=generator)
        weights = {name: start.clone()}
        state = optimizer.initial_state(weights, rules)
        optimizer.update(weights, {name: first}, state, rules, 0.01, 1)
        optimizer.update(weights, {name: second * 0.01}, state, rules, 0.02, 2)
        clipped = first / (first.norm() + 1e-6)
        factor = 0.2 * math.sqrt(8)
        expected = start * 0.999 - 0.01 * factor * optimizer.orthogonalise(clipped * 1.95, 5)
        momentum = 0.95 * clipped + second * 0.01
        direction = optimizer.orthogonalise(second * 0.01 + 0.95 * momentum, 5)
        expected = expected * 0.998 - 0.02 * factor * direction
        self.assertLess(relative_difference(weights[name], expected).maximum, 1e-9)

    def test_who_takes_and_decays_what(self):
        rules = optimizer.OptimizerSettings()
        shapes = parameter_shapes(model_settings(CASES["xmod"]), parse_plan("D + S2"))
        shapes |= parameter_shapes(model_settings(CASES["moe"]), parse_plan("E"))
        for name, shape in shapes.items():
            table = name in ("model.embed_tokens.weight", "lm_head.weight")
            matrix = len(shape) == 2 and not table and not name.endswith("mlp.gate.weight")
            self.assertEqual(optimizer.uses_muon(name, rules), matrix, name)
            self.assertEqual(optimizer.decay(name, rules), 0.1 if matrix or table else 0.0, name)
            trained = not name.endswith("e_score_correction_bias")
            self.assertEqual(optimizer.is_trained(name), trained, name)
        state = optimizer.initial_state({n: torch.zeros(s) for n, s in shapes.items()}, rules)
        for ours, kinds in (
            ("mlp.experts.5.down_proj.weight", ["momentum"]),
            ("mlp.gate.weight", ["first", "second"]),
            ("mlp.gate.e_score_correction_bias", []),
        ):
            name = f"model.layers.0.{ours}."
            found = sorted(key.removeprefix(name) for key in state if key.startswith(name))
            self.assertEqual(found, kinds)

    def test_the_selection_bias_evens_the_counts(self):
        name = "model.layers.{}.mlp.gate.e_score_correction_bias"
        biases = {name.format(i): torch.zeros(n, dtype=torch.float64) for i, n in ((1, 2), (4, 3))}
        # [4, 0] and [0, 3] of two halves of a batch; and one expert that got the mean.
        counts = {1: torch.tensor([4, 0]) + torch.tensor([0, 3]), 4: torch.tensor([1, 5, 3])}
        for _ in range(2):
            optimizer.update_selection_bias(biases, counts, 0.001)
        self.assertEqual(biases[name.format(1)].tolist(), [-0.002, 0.002])
        self.assertEqual(biases[name.format(4)].tolist(), [0.002, -0.002, 0.0])

    def test_schedule(self):
        rates = [optimizer.learning_rate(step, 1000, 2.0) for step in range(1, 1001)]
        self.assertAlmostEqual(rates[0], 0.2)
        self.assertAlmostEqual(rates[9], 2.0)
        self.assertAlmostEqual(rates[504], 1.1)  # half-way from step 10 to step 1000
        self.assertAlmostEqual(rates[999], 0.2)
        self.assertEqual(optimizer.learning_rate(1, 1, 2.0), 2.0)

    def test_clip(self):
        self.assertEqual(optimizer.clip_scale(0.5, 1.0), 1.0)
        self.assertEqual(optimizer.clip_scale(4.0, 1.0), 1.0 / 4.000001)
        self.assertEqual(optimizer.clip_scale(4.0, 0.0), 1.0)


class Differences(unittest.TestCase):
    def test_by_the_largest_element(self):
        gap = relative_difference(torch.tensor([1.0, -4.5]), torch.tensor([1.0, -4.0]))
        self.assertEqual(gap.maximum, 0.125)
        self.assertAlmostEqual(gap.l2, 0.5 / math.sqrt(17))
        self.assertEqual(relative_difference(torch.zeros(2), torch.zeros(2)).maximum, 0)
        self.assertEqual(relative_difference(torch.ones(2), torch.zeros(2)).maximum, math.inf)
        nan = torch.tensor([math.nan, 0.0])
        self.assertEqual(relative_difference(nan, torch.ones(2)).maximum, math.inf)

    def test_small_ones_are_measured_against_the_floor(self):
        a, b = torch.tensor([0.3, 0.0, 0.0, 0.0]), torch.tensor([0.1, 0.0, 0.0, 0.0])
        gap = relative_difference(a, b, floor_norm=2.0)
        self.assertAlmostEqual(gap.maximum, 0.2, places=6)  # 0.2 / (2 / sqrt(4))
        self.assertAlmostEqual(gap.l2, 0.1, places=6)


if __name__ == "__main__":
    unittest.main()
