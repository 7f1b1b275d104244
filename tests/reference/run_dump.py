"""Recomputes one dumped training step and says how far the dump is from it.

    fathom inspect JOB --json > model.json
    fathom train JOB --set debug.dump_step=2 --set debug.dump_dir=DUMP
    python run_dump.py DUMP --model model.json

Weights, tokens, optimizer state, the recorded selection and the learning rate come from the dump;
loss, gradients and new weights are computed here. Each line shows the worst tensor of its kind.
The exit status is 1 when a figure exceeds its tolerance.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

import optimizer
from difference import gradient_floor_norm, kind, relative_difference
from model import Batch, Model, loss_and_gradients, parameter_shapes
from selection import Selection
from settings import PRECISIONS, Settings, parse_plan

# Of loss and gradient norm; of gradients; of weights; of what the optimizer added to the weights,
# which in FP32 is too small beside the weights' own rounding to be held to a figure.
TOLERANCES = {
    "FP64": dict(scalar=1e-9, gradient=1e-9, weight=1e-9, update=1e-8),
    "FP32": dict(scalar=1e-5, gradient=1e-4, weight=1e-6, update=None),
    "BF16": dict(scalar=1e-2, gradient=2e-1, weight=1e-6, update=None),
}


class Report:
    """Prints figures beside their tolerances and remembers whether all were kept."""

    def __init__(self):
        self.passed = True

    def scalar(self, what, dumped, computed, tolerance):
        gap = abs(dumped - computed)
        relative = gap / abs(computed) if computed else (0.0 if gap == 0 else float("inf"))
        self._line(what, f"dump {dumped:.12g}, here {computed:.12g}", relative, tolerance)

    def flips(self, what, decisions, allowed):
        """Of the dumped selection, what the logits computed here would not have selected."""
        layers = [layer for of_sequence in decisions for layer in of_sequence.values()]
        flips = sum(layer.flips for layer in layers)
        margin = max((layer.flip_margin for layer in layers), default=0.0)
        self.passed = self.passed and (allowed or flips == 0)
        mark = "    " if allowed or flips == 0 else "FAIL"
        print(f"{mark} selection: {flips} {what} would not be selected here, margin {margin:.2e}")

    def tensors(self, what, dumped, computed, tolerance, floor_norm=lambda name: 0.0):
        """Without a tolerance the lines only inform."""
        worst = {}
        for name in sorted(computed):
            gap = relative_difference(dumped[name], computed[name], floor_norm(name))
            if kind(name) not in worst or gap.maximum > worst[kind(name)][0].maximum:
                worst[kind(name)] = (gap, name)
        for of_kind, (gap, name) in sorted(worst.items()):
            detail = f"{of_kind}: {name}, L2 {gap.l2:.2e}"
            self._line(what, detail, gap.maximum, tolerance)

    def _line(self, what, detail, figure, tolerance):
        failed = tolerance is not None and not figure <= tolerance
        self.passed = self.passed and not failed
        limit = "" if tolerance is None else f" (at most {tolerance:.0e})"
        print(f"{'FAIL' if failed else '    '} {what}: {figure:.2e}{limit}  {detail}")


@dataclasses.dataclass(frozen=True)
class Dump:
    weights_before: dict
    weights_after: dict
    gradients: dict
    optimizer_before: dict
    batch: Batch
    selection: Selection
    record: dict  # the metrics of the step

    @property
    def is_fp64(self):
        return self.weights_before["model.norm.weight"].dtype == torch.float64


def read_dump(directory, settings, plan, rules):
    """SystemExit when a tensor is missing, is one too many or has the wrong shape."""
    model_shapes = parameter_shapes(settings, plan)
    trained_shapes = {n: shape for n, shape in model_shapes.items() if optimizer.is_trained(n)}
    state = optimizer.initial_state(
        {name: torch.empty(shape) for name, shape in model_shapes.items()}, rules
    )
    state_shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    expected_shapes = {
        "weights_before": model_shapes,
        "weights_after": model_shapes,
        "gradients": trained_shapes,
        "optimizer_before": state_shapes,
    }
    files = {}
    for name, expected in expected_shapes.items():
        path = directory / f"{name}.safetensors"
        files[name] = load_file(path)
        shapes = {tensor: list(value.shape) for tensor, value in files[name].items()}
        for tensor in sorted(shapes.keys() | expected.keys()):
            found, wanted = shapes.get(tensor, "missing"), expected.get(tensor, "absent")
            if found != wanted:
                raise SystemExit(f"{path}: {tensor} is {found}, but the model wants it {wanted}")
    tokens = load_file(directory / "tokens.safetensors")
    batch = Batch(tokens["input_ids"], tokens["labels"], tokens.get("document_ids"))
    length = batch.tokens.shape[1]
    selection = read_selection(directory / "selection.safetensors", settings, plan, length)
    record = json.loads((directory / "step.json").read_text())
    return Dump(**files, batch=batch, selection=selection, record=record)


def read_selection(path, settings, plan, length):
    """Of every layer of the plan that selects; SystemExit when one is missing or is not as it must
    be."""
    tensors = load_file(path) if path.exists() else {}
    selection = Selection({}, {})

    def take(index, kind):
        name = f"model.layers.{index}.{kind}"
        if name not in tensors:
            raise SystemExit(f"{path} has no {name}, which the plan asks for")
        return name, tensors.pop(name)

    for index, layer in enumerate(plan):
        k = length // layer.sparsity
        if layer.kind == "S":
            name, rows = take(index, "depth_selection")
            if not are_ascending(rows, length) or rows.shape[1:] != (k,):
                raise SystemExit(f"{path}: {name} is not {k} ascending tokens of {length}")
            selection.tokens[index] = rows
        if layer.experts:
            name, rows = take(index, "expert_selection")
            rows = rows.sort(dim=-1).values
            wanted = (k, settings.routed)
            if not are_ascending(rows, settings.experts) or rows.shape[1:] != wanted:
                raise SystemExit(
                    f"{path}: {name} is not {settings.routed} different experts of "
                    f"{settings.experts} for each of {k} tokens"
                )
            selection.experts[index] = rows
    if tensors:
        raise SystemExit(f"{path} has {sorted(tensors)[0]}, which the plan does not ask for")
    return selection


def are_ascending(rows, count):
    """Along the last dim, and indices of `count` things."""
    ascending = bool((rows[..., 1:] > rows[..., :-1]).all())
    return ascending and rows.min() >= 0 and rows.max() < count


def compare(dump, model, rules, tolerance):
    """Prints the report; true when every figure is within its tolerance."""
    exact = tolerance is TOLERANCES["FP64"]
    report = Report()
    result = loss_and_gradients(model, dump.batch, replay=dump.selection)
    norm = optimizer.gradient_norm(result.gradients)
    computed = {
        "loss": result.loss,
        "auxiliary_loss": result.auxiliary_loss,
        "gradient_norm": norm,
    }
    for name, value in computed.items():
        report.scalar(name, dump.record[name], value, tolerance["scalar"])
    report.flips("tokens", result.routed, allowed=not exact)
    if any(result.mixed):
        report.flips("experts of tokens", result.mixed, allowed=not exact)
    report.tensors(
        "gradient",
        dump.gradients,
        result.gradients,
        tolerance["gradient"],
        lambda name: 0.0 if exact else gradient_floor_norm(name, norm),
    )

    # The optimizer by itself. Beside the weights, what it added to them, which is far smaller.
    before = {name: p.detach() for name, p in model.parameters.items()}
    counts = result.expert_counts()
    after = new_weights(dump, model, rules, dump.gradients, counts)
    report.tensors(
        "weights, from dumped gradients", dump.weights_after, after, tolerance["weight"]
    )
    report.tensors(
        "update, from dumped gradients",
        {name: dump.weights_after[name] - before[name] for name in before},
        {name: after[name] - before[name] for name in before},
        tolerance["update"],
    )
    # The whole step. AdamW divides each element by its own size, so where a gradient is nearly 0
    # rounding decides its sign: only FP64 can be held to a tolerance.
    after = new_weights(dump, model, rules, result.gradients, counts)
    limit = tolerance["weight"] if exact else None
    report.tensors("weights, from gradients here", dump.weights_after, after, limit)
    return report.passed


def new_weights(dump, model, rules, gradients, expert_counts):
    master = model.precision.master
    weights = {name: p.detach().clone() for name, p in model.parameters.items()}
    state = {name: tensor.to(master).clone() for name, tensor in dump.optimizer_before.items()}
    gradients = {name: gradient.to(master) for name, gradient in gradients.items()}
    rate, step = dump.record["learning_rate"], dump.record["step"]
    optimizer.update(weights, gradients, state, rules, rate, step)
    optimizer.update_selection_bias(weights, expert_counts, model.settings.expert_bias_rate)
    return weights


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dump", type=pathlib.Path, help="directory that train wrote")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="from inspect --json")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: that of the dump")
    parser.add_argument("--optimizer", choices=["MUON", "ADAMW"], default="MUON")
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    options = parser.parse_args(arguments)
    rules = optimizer.OptimizerSettings(
        kind=options.optimizer, weight_decay=options.weight_decay, clip=options.clip
    )
    model_json = json.loads(options.model.read_text())
    plan = parse_plan(model_json["plan"])
    settings = Settings.from_json(model_json["model"])
    dump = read_dump(options.dump, settings, plan, rules)
    stored = "FP64" if dump.is_fp64 else "FP32"
    precision = options.precision or stored
    model = Model(settings, plan, PRECISIONS[precision], dump.weights_before)
    # However exactly an FP32 dump is recomputed here, it was made in FP32.
    tolerance = TOLERANCES[stored if precision == "FP64" else precision]
    return 0 if compare(dump, model, rules, tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
