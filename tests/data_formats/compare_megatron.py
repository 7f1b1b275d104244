#!/usr/bin/env python3
"""Compares Fathom's Megatron files with megatron-core's, token for token, both ways.

  python3 -m venv venv
  venv/bin/pip install torch
  venv/bin/pip install megatron-core numpy packaging
  bazel build //launch:fathom //tests/data_formats:print_tokens
  venv/bin/python tests/data_formats/compare_megatron.py bazel-bin/launch/fathom \\
      bazel-bin/tests/data_formats/print_tokens

Ends with status 1 at the first difference. Not part of the tests that always run: those hold the
same bytes written out.
"""

import json
import os
import random
import subprocess
import sys
import tempfile

import numpy
import torch
from megatron.core.datasets import indexed_dataset


def random_documents(vocabulary, generator):
    """Documents of several sequences each, some of one token."""
    return [[[generator.randrange(vocabulary) for _ in range(generator.choice([1, 2, 7, 300]))]
             for _ in range(generator.randrange(1, 4))]
            for _ in range(200)]


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: differs")
    print(f"{what}: equal")


def written_by_megatron(print_tokens, directory, vocabulary, generator):
    prefix = os.path.join(directory, f"megatron{vocabulary}")
    documents = random_documents(vocabulary, generator)
    dtype = indexed_dataset.DType.optimal_dtype(vocabulary)
    builder = indexed_dataset.IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for sequences in documents:
        for sequence in sequences:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(prefix + ".idx")
    output = subprocess.run([print_tokens, prefix], check=True, capture_output=True, text=True)
    found = [[int(token) for token in line.split()] for line in output.stdout.splitlines()]
    expected = [[token for sequence in sequences for token in sequence] for sequences in documents]
    check(f"megatron-core's file, vocabulary {vocabulary}, {numpy.dtype(dtype)}", found, expected)


def read_by_megatron(fathom, directory, generator):
    prefix = os.path.join(directory, "fathom")
    documents = [sum(sequences, []) for sequences in random_documents(257, generator)]
    with open(prefix + ".jsonl", "w") as lines:
        for document in documents:
            lines.write(json.dumps({"text": document}) + "\n")
    subprocess.run([fathom, "prepare", "--tokenizer", "bytes", "--format", "megatron", "--output",
                    prefix, prefix + ".jsonl"], check=True, stdout=subprocess.DEVNULL)
    dataset = indexed_dataset.IndexedDataset(prefix)
    found = [dataset[i].tolist() for i in range(len(dataset))]
    expected = [document if document[-1] == 256 else document + [256] for document in documents]
    check("Fathom's file, read by megatron-core", found, expected)
    check("its documents", dataset.document_indices.tolist(), list(range(len(documents) + 1)))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    fathom, print_tokens = sys.argv[1:]
    generator = random.Random(37)
    with tempfile.TemporaryDirectory() as directory:
        for vocabulary in (257, 50257, 65499, 65500, 151936):
            written_by_megatron(print_tokens, directory, vocabulary, generator)
        read_by_megatron(fathom, directory, generator)


if __name__ == "__main__":
    main()
