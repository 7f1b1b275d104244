#!/usr/bin/env python3
"""Megabytes of English prose per second and core: Fathom, tiktoken and tokenizers side by side.

    bazel build //tests/tokenizers:encode_file
    python3 -m venv VENV && VENV/bin/pip install tiktoken tokenizers
    VENV/bin/python tests/tokenizers/benchmark.py GPT2 bazel-bin/tests/tokenizers/encode_file [TEXT]

GPT2 is a folder with GPT-2's encoder.json and vocab.bpe; TEXT is by default the dictionary of
Debian's package dict-gcide. Each encodes the same texts of 10 kB, a long web page, on one core.
Times are processor time, and the fastest of five runs counts (of two for tokenizers).
"""

import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken
import tiktoken.load
import tokenizers
from tiktoken_ext import openai_public
from tokenizers import models, pre_tokenizers

import texts

PIECE = 10_000
RUNS = 5


def best(run, repeats):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def processor():
    with open("/proc/cpuinfo") as file:
        return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))


def report(name, rate, fathom):
    print(f"{name:22} {rate:8.1f} MB/s   Fathom is {fathom / rate:.1f} times as fast")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    gpt2, binary = sys.argv[1], os.path.abspath(sys.argv[2])
    merges, vocabulary = os.path.join(gpt2, "vocab.bpe"), os.path.join(gpt2, "encoder.json")
    text = texts.read_text(sys.argv[3] if len(sys.argv) == 4 else texts.DICTIONARY)[:20_000_000]
    documents = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    size = len(text.encode()) / 1e6
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{size:.1f} MB on one core of {processor()}")

    ids, seconds = texts.encode(binary, gpt2, [d.encode() for d in documents], RUNS)
    fathom = size / seconds
    print(f"{'Fathom':22} {fathom:8.1f} MB/s")

    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=openai_public.r50k_pat_str,
        mergeable_ranks=tiktoken.load.data_gym_to_mergeable_bpe_ranks(merges, vocabulary),
        special_tokens={"<|endoftext|>": 50256},
    )
    for document, found in zip(documents, ids, strict=True):
        assert found.tolist() == encoding.encode_ordinary(document), "the ids differ"
    rate = size / best(lambda: [encoding.encode_ordinary(d) for d in documents], RUNS)
    report(f"tiktoken {tiktoken.__version__}", rate, fathom)

    tokenizer = tokenizers.Tokenizer(models.BPE.from_file(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rate = size / best(lambda: tokenizer.encode_batch_fast(documents), 2)
    report(f"tokenizers {tokenizers.__version__}", rate, fathom)


if __name__ == "__main__":
    main()
