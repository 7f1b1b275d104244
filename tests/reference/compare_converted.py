"""Compares logits with those of Hugging Face's transformers, through `fathom convert`, both ways.

    bazel build //launch:fathom //tests:logits
    python compare_converted.py ../../bazel-bin/launch/fathom ../../bazel-bin/tests/logits

From Hugging Face: random weights of Qwen3ForCausalLM and Glm4MoeForCausalLM, in one file and in
several, are converted, and Fathom runs the job that comes with them. To Hugging Face: the toy jobs
train for some steps, their checkpoints are converted, and transformers opens them, with nothing
missing and nothing left over. Every file of tensors is also opened with the safetensors library. All
in FP32. Needs `pip install transformers` besides what the other scripts need. The exit status is 1
when a difference is above the tolerance.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from compare_transformers import (
    LENGTH, SEQUENCES, TOLERANCE, VOCABULARY, draw_weights, make_model, report)

JOBS = pathlib.Path(__file__).resolve().parents[2] / "launch" / "jobs"
SMALL = 100_000  # bytes of a shard: these models take several


class Programs:
    def __init__(self, fathom, logits):
        self._fathom, self._logits = fathom.resolve(), logits.resolve()

    def fathom(self, *words):
        subprocess.run([self._fathom, *words], check=True, capture_output=True)

    def logits(self, job, weights, tokens):
        with tempfile.TemporaryDirectory() as temporary:
            directory = pathlib.Path(temporary)
            save_file({"input_ids": tokens}, directory / "tokens.safetensors")
            files = [job, weights, directory / "tokens.safetensors", directory / "out.safetensors"]
            subprocess.run([self._logits, *files], check=True)
            return load_file(directory / "out.safetensors")["logits"]


def tensors(directory):
    """All tensors of a directory, by the safetensors library; each must be in one file only."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                assert name not in found, f"{name} is in two files"
                found[name] = file.get_tensor(name)
    return found


def files(directory):
    count = len(list(directory.glob("*.safetensors")))
    return f"{count} file" if count == 1 else f"{count} files"


def differing(found, expected):
    """Names of tensors that are not the same to the last bit, or that only one of them has."""
    names = found.keys() & expected.keys()
    same = {name for name in names
            if found[name].dtype == expected[name].dtype and found[name].equal(expected[name])}
    return sorted((found.keys() | expected.keys()) - same)


def check(what, wrong):
    print(f"{'FAIL' if wrong else '    '} {what}{': ' + ', '.join(wrong) if wrong else ''}")
    return bool(wrong)


def from_hugging_face(programs, name, dense, shard, tokens, generator, directory):
    model = make_model(name, dense)
    draw_weights(model, generator)
    with torch.no_grad():
        theirs = model(input_ids=tokens).logits
    source, target = directory / "hugging_face", directory / "fathom"
    model.save_pretrained(source, max_shard_size=shard)
    programs.fathom("convert", source, target)
    ours = programs.logits(target / "job.txtpb", target, tokens)
    plan = f"first {dense} dense, " if dense else ""
    worst = report(f"{name}, {plan}{files(source)}: logits", ours, theirs)
    return worst > TOLERANCE or check("the same weights",
                                      differing(tensors(target), tensors(source)))


def rounded(name, tensor):
    return tensor if ".mlp.gate." in name else tensor.to(torch.bfloat16)


def to_hugging_face(programs, job, tokens, directory):
    path, run = JOBS / f"{job}.txtpb", directory / "run"
    settings = {"train.steps": 5, "train.output": run, "data.directory": directory / "data"}
    programs.fathom("train", path, *[word for key, value in settings.items()
                                     for word in ("--set", f"{key}={value}")])
    ours = programs.logits(path, run, tokens)
    failed = False
    for shard in [None, SMALL]:
        target = directory / f"shard_{shard}"
        size = ["--shard-size", str(shard)] if shard else []
        programs.fathom("convert", run, target, "--format", "huggingface", *size)
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            target, dtype=torch.float32, attn_implementation="eager",
            experts_implementation="eager", output_loading_info=True)
        with torch.no_grad():
            theirs = model.eval()(input_ids=tokens).logits
        what = f"{job}, {type(model).__name__}, {files(target)}"
        failed |= report(f"{what}: logits", ours, theirs) > TOLERANCE
        failed |= check("nothing missing, nothing left over",
                        [f"{kind} {keys}" for kind, keys in loading.items() if keys])
    whole, half = tensors(directory / "shard_None"), directory / "half"
    failed |= check("the same weights in several files",
                    differing(tensors(directory / f"shard_{SMALL}"), whole))
    programs.fathom("convert", run, half, "--format", "huggingface", "--dtype", "bf16")
    failed |= check("rounded to bfloat16 as by PyTorch",
                    differing(tensors(half), {n: rounded(n, t) for n, t in whole.items()}))
    return failed


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fathom", type=pathlib.Path, help="//launch:fathom")
    parser.add_argument("logits", type=pathlib.Path, help="//tests:logits")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    programs = Programs(options.fathom, options.logits)
    generator = torch.Generator().manual_seed(options.seed)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    failed = False
    print(f"transformers {transformers.__version__}, from Hugging Face")
    for name, dense in [("qwen3", 0), ("glm4moe", 0), ("glm4moe", 1)]:
        for shard in ["5GB", SMALL]:
            with tempfile.TemporaryDirectory() as temporary:
                failed |= from_hugging_face(programs, name, dense, shard, tokens, generator,
                                            pathlib.Path(temporary))
    print("to Hugging Face")
    for job in ["toy_dense", "toy_moe"]:
        with tempfile.TemporaryDirectory() as temporary:
            failed |= to_hugging_face(programs, job, tokens, pathlib.Path(temporary))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
