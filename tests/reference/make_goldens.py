"""Writes goldens/CASE/: three FP64 training steps and an evaluation of tiny models.

    python make_goldens.py           writes them anew
    python make_goldens.py --check   makes them elsewhere and compares with those in the tree
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file, save_file

import optimizer
from difference import relative_difference
from model import UNCOUNTED, Batch, Model, evaluate, loss_and_gradients, parameter_shapes
from settings import FP64, Settings, parse_plan

GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"
SEQUENCES, LENGTH, STEPS = 2, 12, 3
SMALLEST_MARGIN = 1e-6  # no decision may hang on rounding
TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class Case:
    plan: str
    model: dict = dataclasses.field(default_factory=dict)
    optimizer: dict = dataclasses.field(default_factory=dict)
    # After which steps the large files are written; each costs 40 to 120 kB.
    gradients: tuple = (1,)
    weights: tuple = (0, 3)
    optimizer_state: tuple = ()
    seed: int = 20


MORE = {"weights": (0, 1, 3), "optimizer_state": (3,)}
MIXTURE = {"balance_coefficient": 1e-2, "expert_bias_rate": 1e-3}
CASES = {
    "dense": Case("2*D", {"theta": 1e6}, **MORE),
    "mod": Case("D + S3 + D", {"gate": "MOD"}, {"clip": 3.0}, **MORE),
    "xmod": Case("D + 2*S3 + D + S2 + D", **MORE),
    "xmod_raw": Case("D + 2*S3", {"alignment": "RAW"}),
    "xmod_none": Case("D + 2*S3", {"gate": "NONE"}),
    "xmod_no_bias": Case("D + 2*S3", {"tau": 0.0}),
    "xmod_tau": Case("D + 2*S3", {"tau": 0.5, "increment": 3.0}),
    "xmod_no_prefix": Case("2*S3 + D", seed=11),
    "xmod_no_anchor": Case("D + 3*S3", {"reset_every": 2}),
    "xmod_adamw": Case("D + 2*S3", optimizer={"kind": "ADAMW"}),
    "xmod_no_auxiliary": Case("D + 2*S3", {"routing_coefficient": 0.0}),
    "xmod_documents": Case("D + 2*S3", {"document_mask": True}),
    "moe": Case("2*E", MIXTURE, **MORE),
    "moe_softmax": Case("D + E", {**MIXTURE, "scoring": "SOFTMAX", "expert_bias_rate": 0.05}),
    "moe_plain": Case(
        "2*E",
        {"routed": 3, "shared": 0, "balance_coefficient": 0.0, "expert_bias_rate": 0.0},
        {"kind": "ADAMW"},
    ),
    "moe_xmod": Case("E + S3 + SE3 + D + SE2", MIXTURE),
    "moe_documents": Case("E + SE3", {**MIXTURE, "document_mask": True}),
}


def model_settings(case):
    sizes = dict(d=16, heads=4, kv_heads=2, head_dim=6, ffn=24, vocabulary=29)
    if any(layer.experts for layer in parse_plan(case.plan)):
        sizes |= dict(experts=6, routed=2, shared=2, expert_ffn=6)
    return Settings(**{**sizes, "theta": 100.0, "routing_coefficient": 0.1, **case.model})


def draw_weights(settings, plan, generator):
    """Wider than a model starts, so that every path carries weight."""
    weights = {}
    for name, shape in parameter_shapes(settings, plan).items():
        values = generator.standard_normal(shape)
        role = optimizer.role(name)
        if "norm" in role or role == "depth_scale":
            values = 1 + 0.2 * values
        elif role == "e_score_correction_bias":
            values = 0.1 * values
        elif role != "embed_tokens":
            values = 0.3 * values
        weights[name] = torch.tensor(values, dtype=torch.float64)
    return weights


def draw_batch(settings, generator):
    """Each sequence is cut from L + 1 random tokens; with documents, at a random place."""
    samples = torch.tensor(generator.integers(settings.vocabulary, size=(SEQUENCES, LENGTH + 1)))
    batch = Batch(samples[:, :-1].contiguous(), samples[:, 1:].contiguous())
    if settings.document_mask:
        batch.documents = torch.zeros_like(batch.tokens)
        for b in range(SEQUENCES):
            border = int(generator.integers(3, LENGTH - 2))
            batch.documents[b, border:] = 1
            batch.labels[b, border - 1] = UNCOUNTED
    return batch


def make_case(name, directory):
    case = CASES[name]
    settings, plan = model_settings(case), parse_plan(case.plan)
    rules = optimizer.OptimizerSettings(**case.optimizer)
    generator = numpy.random.default_rng(case.seed)
    model = Model(settings, plan, FP64, draw_weights(settings, plan, generator))
    batches = [draw_batch(settings, generator) for _ in range(STEPS)]
    write_json(directory / "job.json", describe(name, case, settings, plan, rules))
    save_file(tokens_by_step(batches), directory / "tokens.safetensors")
    if 0 in case.weights:
        save_weights(model, directory / "weights_0.safetensors")
    state = optimizer.initial_state(model.parameters, rules)
    for step in range(1, STEPS + 1):
        train_step(case, model, state, rules, batches[step - 1], step, directory)
    write_json(directory / "evaluation.json", evaluation(name, model, batches[0]))


def train_step(case, model, state, rules, batch, step, directory):
    result = loss_and_gradients(model, batch)
    check_margins(f"step {step}", result.routed + result.mixed)
    rate = optimizer.learning_rate(step, STEPS, rules.learning_rate)
    norm = optimizer.gradient_norm(result.gradients)
    optimizer.update(model.parameters, result.gradients, state, rules, rate, step)
    bias_rate = model.settings.expert_bias_rate
    optimizer.update_selection_bias(model.parameters, result.expert_counts(), bias_rate)
    record = {
        "step": step,
        "loss": result.loss,
        "auxiliary_loss": result.auxiliary_loss,
        "gradient_norm": norm,
        "learning_rate": rate,
    }
    write_json(directory / f"step_{step}.json", record)
    if result.selection.tensors():
        save_file(result.selection.tensors(), directory / f"selection_{step}.safetensors")
    if step in case.gradients:
        save_file(result.gradients, directory / f"gradients_{step}.safetensors")
    if step in case.weights:
        save_weights(model, directory / f"weights_{step}.safetensors")
    if step in case.optimizer_state:
        save_file(state, directory / f"optimizer_{step}.safetensors")


def evaluation(name, model, batch):
    """Of the last weights on the tokens of step 1."""
    record = {}
    for routing in ("CAUSAL", "TOP_K"):
        loss, losses, results = evaluate(model, batch, routing)
        routed = [of_sequence.routed for of_sequence in results]
        mixed = [of_sequence.mixed for of_sequence in results]
        check_margins(f"{name} evaluation", routed + mixed)
        record[routing.lower()] = {
            "loss": loss,
            "token_losses": losses.tolist(),
            "selected": {  # layer -> tokens of each sequence that entered
                str(index): [len(of_sequence[index].selection) for of_sequence in routed]
                for index in routed[0]
            },
        }
    return record


def check_margins(what, decisions):
    """Of layer index -> Routed or Mixed, in a list."""
    smallest = min((layer.margin for of_seq in decisions for layer in of_seq.values()), default=1.0)
    if smallest < SMALLEST_MARGIN:
        raise SystemExit(f"{what}: a token is {smallest} from the other decision; change the seed")


def describe(name, case, settings, plan, rules):
    return {
        "case": name,
        "plan": case.plan,
        "layers": [dataclasses.asdict(layer) for layer in plan],
        "model": dataclasses.asdict(settings),
        "train": {
            "steps": STEPS,
            "sequence_length": LENGTH,
            "global_batch": SEQUENCES,
            "precision": "FP64",
        },
        "optimizer": dataclasses.asdict(rules),
        "schedule": {"kind": "COSINE", "warmup_fraction": 0.01, "final_fraction": 0.1},
        "recorded": {
            "gradients": list(case.gradients),
            "weights": list(case.weights),
            "optimizer": list(case.optimizer_state),
        },
    }


def tokens_by_step(batches):
    tensors = {}
    for step, batch in enumerate(batches, start=1):
        tensors[f"input_ids.{step}"] = batch.tokens
        tensors[f"labels.{step}"] = batch.labels
        if batch.documents is not None:
            tensors[f"document_ids.{step}"] = batch.documents
    return tensors


def save_weights(model, path):
    save_file({name: p.detach() for name, p in model.parameters.items()}, path)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def make_all(directory):
    for name in CASES:
        (directory / name).mkdir(parents=True, exist_ok=True)
        make_case(name, directory / name)


def check(directory):
    """The problems that make `directory` differ from the goldens in the tree."""
    made = {path.relative_to(directory) for path in directory.rglob("*.*") if path.is_file()}
    kept = {path.relative_to(GOLDENS) for path in GOLDENS.rglob("*.*") if path.is_file()}
    problems = [f"{path} is on one side only" for path in sorted(made ^ kept)]
    for path in sorted(made & kept):
        ours, theirs = directory / path, GOLDENS / path
        if path.suffix == ".json":
            pair = json.loads(ours.read_text()), json.loads(theirs.read_text())
            problems += [f"{path}: {line}" for line in json_differences(*pair, "")]
        else:
            problems += [f"{path}: {line}" for line in tensor_differences(ours, theirs)]
    return problems


def tensor_differences(ours, theirs):
    a, b = load_file(ours), load_file(theirs)
    if a.keys() != b.keys():
        return [f"tensors {sorted(a.keys() ^ b.keys())} are on one side only"]
    lines = []
    for name in a:
        allowed = TOLERANCE if a[name].is_floating_point() else 0.0
        if a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            lines.append(f"{name} has another shape or type")
        elif not relative_difference(a[name], b[name]).maximum <= allowed:
            lines.append(f"{name} differs by {relative_difference(a[name], b[name]).maximum}")
    return lines


def json_differences(a, b, where):
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        pairs = [(a[key], b[key], f"{where}.{key}") for key in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b))]
    elif isinstance(a, float) and isinstance(b, float):
        return [] if abs(a - b) <= TOLERANCE * abs(b) else [f"{where} is {a}, not {b}"]
    else:
        return [] if a == b else [f"{where} is {a}, not {b}"]
    return [line for pair in pairs for line in json_differences(*pair)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with those in the tree")
    if not parser.parse_args().check:
        make_all(GOLDENS)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        make_all(pathlib.Path(temporary))
        problems = check(pathlib.Path(temporary))
    print("\n".join(problems) or f"the goldens of {len(CASES)} cases are as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
