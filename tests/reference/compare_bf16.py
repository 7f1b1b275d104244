"""Whether BF16 gradients of Fathom are as exact as those of PyTorch in bfloat16.

    fathom train JOB --set train.precision=FP64 --set train.init_from=WEIGHTS
        --set debug.dump_step=1 --set debug.dump_dir=EXACT
    fathom train JOB --set train.precision=BF16 --set train.init_from=WEIGHTS
        --set debug.dump_step=1 --set debug.dump_dir=ROUNDED
        --set debug.selection_file=EXACT/selection.safetensors
    fathom inspect JOB --json > model.json
    python compare_bf16.py EXACT ROUNDED --model model.json

Both dumps start from the same weights, those that FP32 can hold, and follow one selection. For each
kind of tensor: the L2 norm of the error against FP64 over all tensors of the kind together,
relative to that of the gradients, here and in PyTorch, and their ratio. The exit status is 1 when a
ratio is above the limit.
"""

import argparse
import json
import math
import pathlib
import sys

import torch

import optimizer
from difference import kind
from model import Model, loss_and_gradients
from run_dump import read_dump
from settings import PRECISIONS, Settings, parse_plan


def squared_errors(gradients, exact):
    """By kind: the sums of squares of the error and of the exact gradients."""
    sums = {}
    for name, wanted in exact.items():
        error = gradients[name].double() - wanted.double()
        total = sums.setdefault(kind(name), [0.0, 0.0])
        total[0] += float(error.square().sum())
        total[1] += float(wanted.double().square().sum())
    return sums


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exact", type=pathlib.Path, help="dump in FP64")
    parser.add_argument("rounded", type=pathlib.Path, help="dump in BF16")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="from inspect --json")
    parser.add_argument("--limit", type=float, default=1.5, help="of the ratio")
    options = parser.parse_args(arguments)
    model_json = json.loads(options.model.read_text())
    plan = parse_plan(model_json["plan"])
    settings = Settings.from_json(model_json["model"])
    rules = optimizer.OptimizerSettings(kind="MUON")
    exact = read_dump(options.exact, settings, plan, rules)
    rounded = read_dump(options.rounded, settings, plan, rules)
    for name, weight in exact.weights_before.items():
        if not torch.equal(weight, rounded.weights_before[name].double()):
            raise SystemExit(f"{options.rounded}: {name} starts from other values than the FP64 dump")
    if not torch.equal(exact.batch.tokens, rounded.batch.tokens):
        raise SystemExit(f"{options.rounded} has other tokens than the FP64 dump")
    followed = rounded.selection.tensors()
    for name, rows in exact.selection.tensors().items():
        if not torch.equal(rows, followed[name]):
            raise SystemExit(f"{options.rounded} followed another {name}")

    model = Model(settings, plan, PRECISIONS["BF16"], rounded.weights_before)
    theirs = loss_and_gradients(model, exact.batch, replay=exact.selection)
    print(f"loss: FP64 {exact.record['loss']:.8f}, BF16 here {rounded.record['loss']:.8f}, "
          f"PyTorch {theirs.loss:.8f}")
    ours_by_kind = squared_errors(rounded.gradients, exact.gradients)
    theirs_by_kind = squared_errors(theirs.gradients, exact.gradients)
    worst = 0.0
    for of_kind, (our_error, norm) in sorted(ours_by_kind.items()):
        their_error = theirs_by_kind[of_kind][0]
        ratio = math.sqrt(our_error / their_error) if their_error else math.inf
        worst = max(worst, ratio)
        mark = "FAIL" if not ratio <= options.limit else "    "
        print(f"{mark} {of_kind:32} here {math.sqrt(our_error / norm):.3e}  "
              f"PyTorch {math.sqrt(their_error / norm):.3e}  ratio {ratio:.3f}")
    return 0 if worst <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
