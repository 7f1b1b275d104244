"""Compares logits with those of Hugging Face's transformers, on the same random weights.

    bazel build //tests:logits
    python compare_transformers.py --model qwen3|glm4moe [../../bazel-bin/tests/logits]

qwen3: dense layers, as Qwen3ForCausalLM; glm4moe: layers with experts, as Glm4MoeForCausalLM with
one group. Compared are this directory's model.py and, if the program is named, Fathom, all in FP32.
Needs `pip install transformers` besides what the other scripts need. The exit status is 1 when a
difference is above the tolerance.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

import optimizer
from model import Model
from selection import select_top_k
from settings import FP32, Settings, parse_plan

SEQUENCES, LENGTH, VOCABULARY, LAYERS = 2, 128, 257, 4
MIXTURE = dict(experts=8, routed=2, shared=2, expert_ffn=24)
COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=LAYERS,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0},
    attention_bias=False,
    tie_word_embeddings=False,
    max_position_embeddings=LENGTH,
)
TOLERANCE = 1e-5

JOB = """
model {{
  d: 64  heads: 16  kv_heads: 8  head_dim: 8  ffn: 192  vocabulary: {vocabulary}
  experts: {experts}  routed: {routed}  shared: {shared}  expert_ffn: {expert_ffn}
  plan {{ repeat: {layers} {layer} {{}} }}
}}
data {{ train: "not read" }}
train {{ steps: 1 sequence_length: {length} precision: FP32 }}
device {{ threads: 1 }}
"""


def make_model(name, dense=0):
    """`dense`: so many of the first layers of glm4moe have no experts."""
    if name == "qwen3":
        config = transformers.Qwen3Config(**COMMON, use_sliding_window=False)
    else:
        config = transformers.Glm4MoeConfig(
            **COMMON,
            moe_intermediate_size=MIXTURE["expert_ffn"],
            n_routed_experts=MIXTURE["experts"],
            num_experts_per_tok=MIXTURE["routed"],
            n_shared_experts=MIXTURE["shared"],
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
            first_k_dense_replace=dense,
            num_nextn_predict_layers=0,
            partial_rotary_factor=1.0,
            use_qk_norm=True,
        )
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def draw_weights(model, generator):
    """Wider than a model starts, so that every path carries weight; selection biases that choose."""
    for name, tensor in model.state_dict().items():
        values = torch.randn(tensor.shape, generator=generator)
        role = optimizer.role(name)
        if "norm" in role:
            values = 1 + 0.2 * values
        elif role != "embed_tokens":
            values = 0.1 * values
        tensor.copy_(values)


class Choices:
    """How far the experts that a model chooses are from being others, and for how many tokens the
    selection bias changes them."""

    def __init__(self, model):
        self.margin, self.moved, self.tokens = float("inf"), 0, 0
        for module in model.modules():
            if hasattr(module, "e_score_correction_bias"):
                module.register_forward_hook(self.look)

    def look(self, gate, _, output):
        scores = torch.sigmoid(output[0])
        preference = scores + gate.e_score_correction_bias
        routed = MIXTURE["routed"]
        best = preference.sort(dim=-1, descending=True).values
        self.margin = min(self.margin, float((best[:, routed - 1] - best[:, routed]).min()))
        chosen = select_top_k(preference, routed)
        unbiased = select_top_k(scores, routed)
        self.moved += int((chosen != unbiased).any(dim=-1).sum())
        self.tokens += len(scores)


@torch.no_grad()
def reference_logits(name, weights, tokens):
    settings = Settings(
        d=64, heads=16, kv_heads=8, head_dim=8, ffn=192, vocabulary=VOCABULARY, **MIXTURE
    )
    plan = parse_plan(f"{LAYERS}*{'D' if name == 'qwen3' else 'E'}")
    model = Model(settings, plan, FP32, weights)
    labels = torch.zeros_like(tokens[0])
    return torch.stack([model.run(sequence, labels).logits for sequence in tokens])


def fathom_logits(program, name, tokens, directory):
    """Of the weights in `directory`."""
    save_file({"input_ids": tokens}, directory / "tokens.safetensors")
    layer = "dense" if name == "qwen3" else "moe"
    job = JOB.format(layer=layer, layers=LAYERS, vocabulary=VOCABULARY, length=LENGTH, **MIXTURE)
    (directory / "job.txtpb").write_text(job)
    files = [directory / "job.txtpb", directory, directory / "tokens.safetensors"]
    output = directory / "logits.safetensors"
    subprocess.run([program.resolve(), *files, output], check=True)
    return load_file(output)["logits"]


def token_losses(logits, tokens):
    logits, labels = logits[:, :-1].double(), tokens[:, 1:]
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def report(what, ours, theirs):
    """Prints the relative difference and returns it."""
    gap = (ours.double() - theirs.double()).abs()
    relative = float(gap.max() / theirs.double().abs().max())
    mark = "    " if relative <= TOLERANCE else "FAIL"
    place = [int(i) for i in torch.unravel_index(gap.argmax(), gap.shape)]
    print(f"{mark} {what}: {relative:.2e} of {float(theirs.abs().max()):.4g}, worst at {place}")
    return relative


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", type=pathlib.Path, help="//tests:logits")
    parser.add_argument("--model", choices=["qwen3", "glm4moe"], required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    generator = torch.Generator().manual_seed(options.seed)
    model = make_model(options.model)
    draw_weights(model, generator)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    choices = Choices(model)
    with torch.no_grad():
        theirs = model(input_ids=tokens).logits
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        model.save_pretrained(directory)  # under the names that files have
        weights = load_file(directory / "model.safetensors")
        found["model.py"] = reference_logits(options.model, weights, tokens)
        if options.program:
            found["Fathom"] = fathom_logits(options.program, options.model, tokens, directory)

    print(f"transformers {transformers.__version__}, {options.model}, logits {list(theirs.shape)}")
    if choices.tokens:
        print(f"     experts of {choices.moved} of {choices.tokens} tokens are not those of the "
              f"largest scores alone; the closest choice hangs on {choices.margin:.2e}")
    worst = 0.0
    for program, ours in found.items():
        worst = max(worst, report(f"{program}: logits", ours, theirs))
        losses = token_losses(ours, tokens), token_losses(theirs, tokens)
        worst = max(worst, report(f"{program}: loss of each token", *losses))
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
