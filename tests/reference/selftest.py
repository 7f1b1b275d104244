"""Tests of the reference itself, against other truths.   python selftest.py"""

import contextlib
import dataclasses
import io
import json
import pathlib
import tempfile
import unittest

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import optimizer
import run_dump
from difference import relative_difference
from make_goldens import CASES, draw_batch, draw_weights, model_settings
from model import UNCOUNTED, Model, loss_and_gradients, rotary_table, rotate
from selection import select_causal, select_top_k
from selftest_experts import Experts  # noqa: F401 (it and the next run with the rest)
from selftest_optimizer import Differences, Optimizers  # noqa: F401
from settings import BF16, FP32, FP64, Layer, parse_plan


def make(plan, precision=FP64, seed=3, **changes):
    """A model of the goldens' sizes, and a batch for it."""
    layers = parse_plan(plan)
    case = "moe" if any(layer.experts for layer in layers) else "dense"
    settings = dataclasses.replace(model_settings(CASES[case]), **{"theta": 1e6, **changes})
    generator = numpy.random.default_rng(seed)
    weights = draw_weights(settings, layers, generator)
    return Model(settings, layers, precision, weights), draw_batch(settings, generator)


@torch.no_grad()
def total_loss(model, batch, replay):
    """Loss and auxiliary term by a formula of its own."""
    results = [
        model.run(*batch.sequence(b), replay=replay.sequence(b))
        for b in range(len(batch.tokens))
    ]
    losses = []
    for b, result in enumerate(results):
        log_probabilities = result.logits - result.logits.logsumexp(dim=-1, keepdim=True)
        counted = torch.nonzero(batch.labels[b] != UNCOUNTED).flatten()
        losses += [-log_probabilities[i, batch.labels[b, i]] for i in counted]
    loss = float(sum(losses)) / len(losses)
    alignment = sum(float(of.alignment_loss) for result in results for of in result.routed.values())
    loss += model.settings.routing_coefficient * alignment / batch.tokens.numel()
    balance = sum(float(of.balance_loss) for result in results for of in result.mixed.values())
    return loss + model.settings.balance_coefficient * balance / len(batch.tokens)


class Gradients(unittest.TestCase):
    def assert_finite_differences(self, model, batch):
        result = loss_and_gradients(model, batch)
        generator = numpy.random.default_rng(5)
        width = 1e-5
        for name, gradient in result.gradients.items():
            flat, gradient = model.parameters[name].detach().view(-1), gradient.view(-1)
            largest = int(gradient.abs().argmax())
            for i in {largest, int(generator.integers(len(flat)))}:
                kept = float(flat[i])
                flat[i] = kept + width
                above = total_loss(model, batch, result.selection)
                flat[i] = kept - width
                below = total_loss(model, batch, result.selection)
                flat[i] = kept
                slope = (above - below) / (2 * width)
                gap = abs(slope - float(gradient[i]))
                self.assertLess(gap, 1e-6 * float(gradient.abs().max()) + 1e-9, (name, i))

    def test_every_gate_and_alignment(self):
        for gate in ("XMOD", "MOD", "NONE"):
            for alignment in ("BIASED", "RAW"):
                with self.subTest(gate=gate, alignment=alignment):
                    settings = dict(gate=gate, alignment=alignment, increment=2.0)
                    self.assert_finite_differences(*make("D + 2*S3", **settings))

    def test_documents(self):
        self.assert_finite_differences(*make("D + S2", document_mask=True))

    def test_experts_with_either_scoring(self):
        # Coefficients so large that a wrong gradient of the losses that they weigh would show.
        coefficients = dict(routing_coefficient=1.0, balance_coefficient=1.0)
        for plan, settings in (
            ("SE3 + E", {}),
            ("SE3", {"scoring": "SOFTMAX"}),
            ("E", {"shared": 0, "routed": 3}),
        ):
            with self.subTest(plan=plan, **settings):
                self.assert_finite_differences(*make(plan, **settings, **coefficients))

    def test_narrower_precisions_stay_near(self):
        exact, batch = make("D + 2*S3")
        truth = loss_and_gradients(exact, batch)
        for precision, tolerance in ((FP32, 1e-4), (BF16, 0.2)):
            model, _ = make("D + 2*S3", precision)
            result = loss_and_gradients(model, batch, replay=truth.selection)
            self.assertLess(abs(result.loss / truth.loss - 1), tolerance)
            for name, gradient in result.gradients.items():
                self.assertEqual(gradient.dtype, torch.float32)
                gap = relative_difference(gradient, truth.gradients[name])
                self.assertLess(gap.l2, tolerance, name)
                self.assertGreater(gap.l2, 0, name)


class Parts(unittest.TestCase):
    def test_norm_and_attention_against_torch(self):
        model, _ = make("D")
        s = model.settings
        x = torch.randn(7, s.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        positions = torch.tensor([0, 2, 3, 7, 8, 9, 11])
        weight = {name.removeprefix("model.layers.0."): p for name, p in model.parameters.items()}
        normed = F.rms_norm(x, [s.d], weight["input_layernorm.weight"], s.eps)
        heads = []
        for which, count in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
            rows = F.linear(normed, weight[f"self_attn.{which}_proj.weight"])
            rows = rows.view(7, count, s.head_dim).transpose(0, 1)
            if which != "v":
                norm_weight = weight[f"self_attn.{which}_norm.weight"]
                rows = self.turned(F.rms_norm(rows, [s.head_dim], norm_weight, s.eps), positions, s)
            heads.append(rows)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        expected = mixed.transpose(0, 1).reshape(7, -1) @ weight["self_attn.o_proj.weight"].T
        documents = torch.zeros(7, dtype=torch.int64)
        actual = model._attention(0, x, positions, documents)
        self.assertLess(relative_difference(actual, expected).maximum, 1e-13)

    def turned(self, x, positions, settings):
        """Rotation as multiplication of complex numbers: element i with element i + h/2."""
        half = settings.head_dim // 2
        rates = numpy.array([settings.theta ** (-2 * i / settings.head_dim) for i in range(half)])
        pairs = torch.complex(x[..., :half], x[..., half:])
        phase = positions[:, None].double() * torch.from_numpy(rates)
        pairs = pairs * torch.polar(torch.ones_like(phase), phase)
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    def test_rotation_depends_on_distance_alone(self):
        x = torch.randn(2, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        products = []
        for start in (0, 5000):
            table = rotary_table(torch.tensor([start, start + 3]), 6, 100.0, torch.float64)
            turned = rotate(x, *table)
            products.append(float((turned[0] * turned[1]).sum()))
        self.assertAlmostEqual(products[0], products[1], places=10)

    def test_top_k_is_ascending_and_ties_go_to_the_lower_index(self):
        values = torch.tensor([1.0, 3.0, 1.0, 5.0, 1.0, 3.0])
        self.assertEqual(select_top_k(values, 2).tolist(), [1, 3])
        self.assertEqual(select_top_k(values, 4).tolist(), [0, 1, 3, 5])
        self.assertEqual(select_top_k(values, 5).tolist(), [0, 1, 2, 3, 5])

    def test_causal_threshold_includes_0(self):
        self.assertEqual(select_causal(torch.tensor([0.0, -1e-9, 1e-9])).tolist(), [0, 2])

    def test_plans(self):
        self.assertEqual(len(parse_plan("4*D + 6*(48*S16 + D)")), 298)
        nested = parse_plan("2*D + 2*(4*S4 + D)")
        dense, sparse = [Layer("D")], [Layer("S", 4)]
        self.assertEqual(nested, dense * 2 + (sparse * 4 + dense) * 2)
        mixtures = [Layer("D", experts=True), Layer("S", 16, experts=True)]
        self.assertEqual(parse_plan("E + SE16"), mixtures)
        for wrong in ("", "D +", "2 D", "(D", "D)", "S", "SE", "DE", "E4", "28*A", "loop(2, D)"):
            with self.assertRaises(ValueError, msg=wrong):
                parse_plan(wrong)


class Routing(unittest.TestCase):
    def test_sparsity_1_without_gate_is_dense(self):
        sparse, batch = make("3*S1", gate="NONE")
        weights = {n: p for n, p in sparse.parameters.items() if "depth_router" not in n}
        dense = Model(sparse.settings, parse_plan("3*D"), FP64, weights)
        for b in range(len(batch.tokens)):
            logits = [model.run(*batch.sequence(b)).logits for model in (sparse, dense)]
            self.assertTrue(torch.equal(*logits))
        sparse, batch = make("2*SE1", gate="NONE")
        weights = {n: p for n, p in sparse.parameters.items() if "depth_router" not in n}
        dense = Model(sparse.settings, parse_plan("2*E"), FP64, weights)
        results = [model.run(*batch.sequence(0)) for model in (sparse, dense)]
        self.assertTrue(torch.equal(results[0].logits, results[1].logits))
        losses = [float(result.mixed[1].balance_loss.detach()) for result in results]
        self.assertEqual(losses[0], losses[1])

    def test_rows_not_selected_stay_as_they_were(self):
        for gate in ("XMOD", "MOD", "NONE"):
            model, batch = make("S3", gate=gate)
            result = model.run(*batch.sequence(0))
            before = model.parameters["model.embed_tokens.weight"][batch.tokens[0]]
            same = (result.residual == before).all(dim=1)
            expected = torch.ones(len(same), dtype=torch.bool)
            expected[result.routed[0].selection] = False
            self.assertTrue(torch.equal(same, expected), gate)

    def selections(self, plan, **settings):
        model, batch = make(plan, **settings)
        routed = model.run(*batch.sequence(0)).routed
        return [set(layer.selection.tolist()) for layer in routed.values()]

    def test_counts_spread_selections_until_a_reset(self):
        # With a large tau no token comes again before all have come, unless counts are reset.
        came_again = {"3*S4": 0, "2*S4 + D + S4": 0, "3*S4 reset": 0}
        for seed in range(5):
            for case in came_again:
                settings = {"reset_every": 2} if "reset" in case else {}
                plan = case.removesuffix(" reset")
                chosen = self.selections(plan, tau=1e6, seed=seed, **settings)
                self.assertFalse(chosen[0] & chosen[1])
                came_again[case] += len(chosen[2] & (chosen[0] | chosen[1]))
        self.assertEqual(came_again["3*S4"], 0)
        self.assertGreater(came_again["2*S4 + D + S4"], 0)
        self.assertGreater(came_again["3*S4 reset"], 0)

    def test_increment_and_tau_act_as_a_product(self):
        selections = [
            self.selections("4*S3", tau=tau, increment=increment)
            for tau, increment in ((0.5, 3.0), (1.5, 1.0), (0.0, 3.0))
        ]
        self.assertEqual(selections[0], selections[1])
        self.assertNotEqual(selections[0], selections[2])

    def prefix_is_unmoved(self, routing):
        model, batch = make("D + 2*S2 + D")
        tokens, labels, _ = batch.sequence(0)
        logits = [model.run(tokens, labels, routing=routing).logits[:6]]
        for later in range(model.settings.vocabulary):
            changed = tokens.clone()
            changed[6:] = later
            logits.append(model.run(changed, labels, routing=routing).logits[:6])
        return all(torch.allclose(logits[0], other, rtol=1e-12) for other in logits)

    def test_the_future_moves_top_k_and_never_causal_routing(self):
        self.assertTrue(self.prefix_is_unmoved("CAUSAL"))
        self.assertFalse(self.prefix_is_unmoved("TOP_K"))

    def test_a_document_is_as_if_alone(self):
        model, batch = make("2*D", document_mask=True)
        border = int((batch.documents[0] == 0).sum())
        tokens, labels, documents = batch.sequence(0)
        together = model.run(tokens, labels, documents).logits[border:]
        alone = model.run(tokens[border:], labels[border:], documents[border:]).logits
        self.assertLess(relative_difference(together, alone).maximum, 1e-13)


class Dumps(unittest.TestCase):
    """A dump of the reference's own second step."""

    def write(self, directory, precision=FP64, spoil=None, plan="D + 2*S3 + D"):
        model, batch = make(plan, precision)
        rules = optimizer.OptimizerSettings()
        state = optimizer.initial_state(model.parameters, rules)
        first = loss_and_gradients(model, batch)
        self.update(model, first, state, rules, 0.01, 1)
        result = loss_and_gradients(model, batch)
        files = {
            "weights_before": {n: p.detach().clone() for n, p in model.parameters.items()},
            "optimizer_before": {name: tensor.clone() for name, tensor in state.items()},
            "gradients": {name: tensor.clone() for name, tensor in result.gradients.items()},
            "tokens": {"input_ids": batch.tokens, "labels": batch.labels},
            "selection": result.selection.tensors(),
        }
        self.update(model, result, state, rules, 0.005, 2)
        files["weights_after"] = {n: p.detach() for n, p in model.parameters.items()}
        record = {
            "step": 2,
            "loss": result.loss,
            "auxiliary_loss": result.auxiliary_loss,
            "gradient_norm": optimizer.gradient_norm(result.gradients),
            "learning_rate": 0.005,
        }
        if spoil:
            spoil(files, record)
        for name, tensors in files.items():
            save_file(tensors, directory / f"{name}.safetensors")
        (directory / "step.json").write_text(json.dumps(record))
        inspected = {"plan": plan, "model": dataclasses.asdict(model.settings)}
        (directory / "model.json").write_text(json.dumps(inspected))

    def update(self, model, result, state, rules, rate, step):
        optimizer.update(model.parameters, result.gradients, state, rules, rate, step)
        bias_rate = model.settings.expert_bias_rate
        optimizer.update_selection_bias(model.parameters, result.expert_counts(), bias_rate)

    def status(self, *arguments, **settings):
        with tempfile.TemporaryDirectory() as temporary:
            directory = pathlib.Path(temporary)
            self.write(directory, **settings)
            with contextlib.redirect_stdout(io.StringIO()):
                names = [str(directory), "--model", str(directory / "model.json")]
                return run_dump.main([*names, *arguments])

    def test_own_dumps_pass(self):
        self.assertEqual(self.status(), 0)
        self.assertEqual(self.status(precision=FP32), 0)
        self.assertEqual(self.status("--precision", "FP64", precision=FP32), 0)
        self.assertEqual(self.status("--precision", "BF16", precision=BF16), 0)
        self.assertEqual(self.status(plan="E + SE3"), 0)
        self.assertEqual(self.status(plan="E + SE3", precision=FP32), 0)

    def test_the_order_of_experts_does_not_matter(self):
        def turn_round(files, record):
            name = "model.layers.0.expert_selection"
            files["selection"][name] = files["selection"][name].flip(-1).contiguous()

        self.assertEqual(self.status(plan="E", spoil=turn_round), 0)

    def test_each_wrong_figure_of_experts_fails(self):
        def move(file, name, step):
            def spoil(files, record):
                files[file][name] = files[file][name] + step

            return spoil

        mlp = "model.layers.1.mlp."
        for file, name in (
            ("weights_after", mlp + "gate.e_score_correction_bias"),
            ("weights_before", mlp + "gate.e_score_correction_bias"),
            ("weights_after", mlp + "experts.0.up_proj.weight"),
            ("gradients", mlp + "gate.weight"),
            ("gradients", mlp + "shared_experts.down_proj.weight"),
            ("optimizer_before", mlp + "experts.0.down_proj.weight.momentum"),
        ):
            with self.subTest(file=file, name=name):
                self.assertEqual(self.status(plan="E + SE3", spoil=move(file, name, 1e-4)), 1)

        def other_expert(files, record):
            chosen = files["selection"]["model.layers.0.expert_selection"]
            chosen[0, 0] = torch.tensor([i for i in range(6) if i not in chosen[0, 0]][:2])

        def twice(files, record):
            files["selection"]["model.layers.0.expert_selection"][0, 0] = 3

        def bias_gradient(files, record):
            files["gradients"][mlp + "gate.e_score_correction_bias"] = torch.zeros(6)

        self.assertEqual(self.status(plan="E + SE3", spoil=other_expert), 1)
        for spoil in (twice, bias_gradient):
            with self.assertRaises(SystemExit):
                self.status(plan="E + SE3", spoil=spoil)

    def test_each_wrong_figure_fails(self):
        def scale(file, name, factor):
            def spoil(files, record):
                target = record if file == "record" else files[file]
                target[name] = target[name] * factor

            return spoil

        matrix = "model.layers.1.self_attn.o_proj.weight"
        for file, name in (
            ("record", "loss"),
            ("record", "auxiliary_loss"),
            ("record", "gradient_norm"),
            ("record", "learning_rate"),
            ("gradients", matrix),
            ("gradients", "model.layers.2.depth_scale"),
            ("weights_before", matrix),
            ("weights_after", matrix),
            ("optimizer_before", f"{matrix}.momentum"),
            ("optimizer_before", "model.layers.2.depth_router.weight.second"),
        ):
            with self.subTest(file=file, name=name):
                self.assertEqual(self.status(spoil=scale(file, name, 1 + 1e-6)), 1)
        self.assertEqual(self.status("--clip", "100"), 1)
        self.assertEqual(self.status("--weight_decay", "0.2"), 1)

    def test_a_selection_that_the_logits_do_not_give_fails(self):
        def spoil(files, record):
            files["selection"]["model.layers.1.depth_selection"] = torch.tensor([[0, 1, 2, 3]] * 2)

        self.assertEqual(self.status(spoil=spoil), 1)

    def test_missing_or_foreign_tensors_are_refused(self):
        def without(files, record):
            del files["gradients"]["model.norm.weight"]

        def foreign(files, record):
            files["selection"]["model.layers.0.depth_selection"] = torch.tensor([[0, 1, 2, 3]] * 2)

        for spoil in (without, foreign):
            with self.assertRaises(SystemExit):
                self.status(spoil=spoil)
        with self.assertRaises(SystemExit):
            self.status("--optimizer", "ADAMW")


if __name__ == "__main__":
    unittest.main()
