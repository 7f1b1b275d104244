#!/usr/bin/env python3
"""Has llm.c write token files, and compares what Fathom reads of them, token for token.

  python3 -m venv venv
  venv/bin/pip install numpy requests tqdm
  bazel build //launch:fathom //tests/data_formats:print_tokens
  venv/bin/python tests/data_formats/compare_llmc.py LLMC/dev/data/data_common.py \\
      bazel-bin/tests/data_formats/print_tokens

LLMC is a checkout of llm.c; data_common.py is the module that all of its data scripts write with,
and requests and tqdm are what it imports. Ends with status 1 at the first difference. Not part of
the tests that always run: those hold the same layout written out.
"""

import importlib.util
import os
import random
import subprocess
import sys
import tempfile

# What the writer calls its two layouts, and the vocabulary of the tokenizer that each is for.
LAYOUTS = {"gpt-2": 50257, "llama-3": 128256}


def load(path):
    spec = importlib.util.spec_from_file_location("data_common", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data_common, print_tokens = load(sys.argv[1]), sys.argv[2]
    generator = random.Random(41)
    with tempfile.TemporaryDirectory() as directory:
        for layout, vocabulary in LAYOUTS.items():
            for count in (1, 2, 1023, 200_000):
                path = os.path.join(directory, f"{layout}_{count}.bin")
                tokens = [generator.randrange(vocabulary) for _ in range(count)]
                tokens[-1] = vocabulary - 1
                data_common.write_datafile(path, tokens, layout)
                output = subprocess.run([print_tokens, path], check=True, capture_output=True,
                                        text=True)
                if [int(token) for token in output.stdout.split()] != tokens:
                    sys.exit(f"llm.c's {layout} file of {count} tokens: differs")
                print(f"llm.c's {layout} file of {count} tokens: equal")


if __name__ == "__main__":
    main()
