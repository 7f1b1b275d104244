#!/usr/bin/env python3
"""Compares Fathom's GPT-2 tokens with tiktoken's, and other forms of tokenizers with their makers'.

    bazel build //tests/tokenizers:encode_file
    python3 -m venv VENV && VENV/bin/pip install tiktoken tokenizers
    VENV/bin/python tests/tokenizers/compare_gpt2.py GPT2 bazel-bin/tests/tokenizers/encode_file

GPT2 is a folder with GPT-2's encoder.json and vocab.bpe. Takes about five minutes and a few GB
of memory; ends with "all equal", or at the first difference.
"""

import base64
import json
import os
import random
import sys
import tempfile

import tiktoken
import tiktoken.load
import tokenizers
from tiktoken_ext import openai_public
from tokenizers import decoders, models, pre_tokenizers

import texts

GPT2_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"""
    r""" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
LLAMA3_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"""
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")


def long_texts():
    rng = random.Random(5)
    size = 10_000_000
    yield "10 MB of random letters", "".join(rng.choices("etaoinshrdlu", k=size))
    yield "10 MB of one letter", "a" * size
    yield "100 KB of spaces", " " * 100_000 + "a"
    yield "10 MB of Chinese", "".join(map(chr, rng.choices(range(0x4E00, 0x9FA5), k=size // 3)))
    yield "10 MB of marks", "".join(rng.choices("-=*#._", k=size))
    yield "runs of spaces", "".join(" " * n + "x\n" for n in range(3000))
    yield "emoji", "".join(map(chr, rng.choices(range(0x1F300, 0x1FA00), k=1_000_000)))


def compare_with_tiktoken(binary, gpt2, ranks):
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=openai_public.r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 50256},
    )
    reference = encoding.encode_ordinary
    texts.check("every code point", binary, gpt2, texts.every_code_point(), reference)
    texts.check("random strings", binary, gpt2, texts.random_strings(100_000, 1), reference)
    ids, _ = texts.encode(binary, gpt2, texts.random_bytes(100_000, 2))
    print(f"random bytes: {len(ids)} texts survive the round trip")
    for name, text in long_texts():
        texts.check(name, binary, gpt2, [text], reference)
    # tiktoken's regular expressions overflow their stack on so many spaces, but not its merging.
    spaces = " " * 10_000_000
    merged = encoding._core_bpe.encode_single_piece(spaces.encode())
    merged.append(encoding.encode_single_token(" a"))
    texts.check("10 MB of spaces", binary, gpt2, [spaces + " a"], lambda _: merged)
    texts.check("system texts", binary, gpt2, texts.system_texts(12_000_000), reference)


def sample(seed):
    """A few megabytes for the comparisons of other forms."""
    yield from texts.system_texts(300_000, 100_000)
    yield from texts.random_strings(20_000, seed)
    yield from ["\n  ", "a \n \n  ", "x  \n", "\r\n\r\n x", " \u3000\n\u3000a"]
    yield from ["'S 'LL 'R", "1234567"]


def compare_tiktoken_files(binary, folder, ranks):
    """GPT-2 as a tiktoken file; and cl100k's pattern, which comes with its number of tokens."""
    for name, pattern, count in (
        ("gpt2", openai_public.r50k_pat_str, 50256),
        ("cl100k", CL100K_PATTERN, 100256),
    ):
        filled = dict(ranks)
        for i in range(len(ranks), count):
            filled[b"\xff\xfe" + str(i).encode()] = i
        path = os.path.join(folder, name + ".tiktoken")
        with open(path, "wb") as file:
            for token, rank in filled.items():
                file.write(base64.b64encode(token) + b" %d\n" % rank)
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=filled, special_tokens={}
        )
        texts.check(f"tiktoken file, {name}", binary, path, sample(3), encoding.encode_ordinary)


def compare_tokenizer_json(binary, folder, gpt2):
    with open(os.path.join(gpt2, "encoder.json")) as file:
        vocabulary = json.load(file)
    with open(os.path.join(gpt2, "vocab.bpe")) as file:
        merges = [tuple(line.split()) for line in file.read().split("\n")[1:-1]]
    byte_level = pre_tokenizers.ByteLevel
    split = pre_tokenizers.Split

    def after(pattern):
        return pre_tokenizers.Sequence(
            [
                split(tokenizers.Regex(pattern), "isolated"),
                byte_level(add_prefix_space=False, use_regex=False),
            ]
        )

    for name, pre_tokenizer in (
        ("ByteLevel", byte_level(add_prefix_space=False)),
        ("GPT-2's pattern", after(GPT2_PATTERN)),
        ("Llama 3's pattern", after(LLAMA3_PATTERN)),
        ("Qwen2's pattern", after(QWEN2_PATTERN)),
    ):
        # Without the end-of-document token, which this library would find inside the texts.
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        path = os.path.join(folder, "tokenizer.json")
        with open(path, "w") as file:
            as_json = json.loads(tokenizer.to_str())
            as_json["added_tokens"] = [
                {"id": 50256, "content": "<|endoftext|>", "special": True, "normalized": False}
            ]
            json.dump(as_json, file)
        texts.check(
            f"tokenizer.json, {name}",
            binary,
            path,
            sample(4),
            lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        )


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    gpt2, binary = sys.argv[1], os.path.abspath(sys.argv[2])
    ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(
        os.path.join(gpt2, "vocab.bpe"), os.path.join(gpt2, "encoder.json")
    )
    with tempfile.TemporaryDirectory() as folder:
        compare_tiktoken_files(binary, folder, ranks)
        compare_tokenizer_json(binary, folder, gpt2)
    compare_with_tiktoken(binary, gpt2, ranks)
    print("all equal")


if __name__ == "__main__":
    main()
