"""Texts to compare tokenizers on, and how encode_file takes and gives them."""

import gzip
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

# Documentation, source code and translations, in many scripts, as a Debian system has them.
SYSTEM_FOLDERS = (
    "/usr/share/man",
    "/usr/share/doc",
    "/usr/share/locale",
    "/usr/share/i18n",
    "/usr/share/perl",
    "/usr/share/dictd",
    "/usr/share/info",
    "/usr/lib/python3",
    "/usr/lib/python3.11",
    "/usr/include",
)
DICTIONARY = "/usr/share/dictd/gcide.dict.dz"


def read_text(path):
    """What a file holds of valid UTF-8, decompressed."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return data.decode("utf-8", "ignore")


def system_texts(at_most, at_most_each=4_000_000):
    """Texts of the system's files, `at_most` bytes from each folder."""
    for folder in SYSTEM_FOLDERS:
        left = at_most
        for root, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(root, name)
                if left <= 0 or not os.path.isfile(path) or os.path.islink(path):
                    continue
                if name.endswith((".pyc", ".so", ".a", ".xz", ".zst")):
                    continue
                try:
                    text = read_text(path)[:at_most_each]
                except (OSError, EOFError, gzip.BadGzipFile):
                    continue
                left -= len(text.encode())
                yield text


def every_code_point():
    """One text for each: alone, doubled, between letters, digits, spaces and marks."""
    for code_point in range(0x110000):
        if not 0xD800 <= code_point < 0xE000:
            c = chr(code_point)
            yield f"{c}{c} {c}a{c}1{c}.{c}  {c} 's{c}"


def random_strings(count, seed):
    """Unicode strings: uniform, from one block, mixed with spaces and marks, emoji, repeats."""
    rng = random.Random(seed)
    pieces = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\x00", "\x85"]
    pieces += ["'s", "'ll", "'LL", "'\u017f", "don't", "hello", " world", "<|endoftext|>"]
    pieces += ["\u00a0", "\u2003", "\u3000", "\u200b", "\u0301", "\ufe0f", "\u200d"]
    pieces += ["12345", "\u0663", "\u00bd", "\u2167", "...", "====="]
    pieces += ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f600"]
    pieces += ["\U0001f1e9\U0001f1ea"]

    blocks = [n for n in range(0, 0x32000, 0x80) if not 0xD800 <= n < 0xE000]

    def scalar(low, high):
        while True:
            value = rng.randrange(low, high)
            if not 0xD800 <= value < 0xE000:
                return chr(value)

    for i in range(count):
        length = rng.randrange(0, 40)
        kind = i % 5
        if kind == 0:
            yield "".join(scalar(0, 0x110000) for _ in range(length))
        elif kind == 1:
            start = rng.choice(blocks)
            yield "".join(rng.choice([" ", scalar(start, start + 0x80)]) for _ in range(length))
        elif kind == 2:
            yield "".join(rng.choice(pieces) for _ in range(length))
        elif kind == 3:
            yield "".join(scalar(0, 0x80) for _ in range(length))
        else:
            yield "".join(
                rng.choice([rng.choice(pieces), scalar(0, 0x3000)]) * rng.choice([1, 1, 1, 7])
                for _ in range(length)
            )


def random_bytes(count, seed):
    """Byte strings: uniform, and UTF-8 that was cut, changed or joined."""
    rng = random.Random(seed)
    for i, text in enumerate(random_strings(count, seed)):
        data = bytearray(text.encode())
        if i % 2 == 0:
            data = bytearray(rng.randbytes(rng.randrange(0, 60)))
        elif data:
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            del data[rng.randrange(len(data) + 1):]
        yield bytes(data)


def encode(binary, tokenizer, texts, repeats=1):
    """The ids that encode_file gives for each text (bytes), and the processor time that it took."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "texts"), os.path.join(folder, "ids")
        with open(source, "wb") as file:
            for text in texts:
                file.write(struct.pack("<Q", len(text)) + text)
        run = subprocess.run(
            [binary, tokenizer, source, target, str(repeats)], capture_output=True, text=True
        )
        if run.returncode != 0:
            sys.exit(run.stderr)
        with open(target, "rb") as file:
            data = file.read()
    ids, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        ids.append(memoryview(data)[at + 8 : at + 8 + 4 * size].cast("i"))
        at += 8 + 4 * size
    return ids, float(run.stdout.split()[2])


def check(name, binary, tokenizer, texts, reference):
    """Compares the ids of every text with reference(text); ends the program on a difference."""
    texts = list(texts)
    data = [text.encode() for text in texts]
    ids, seconds = encode(binary, tokenizer, data)
    start = time.process_time()
    tokens = 0
    for text, found in zip(texts, ids, strict=True):
        wanted = reference(text)
        tokens += len(wanted)
        if found.tolist() != list(wanted):
            first = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), -1)
            sys.exit(
                f"{name}: ids differ at token {first} of {ascii(text[:200])}:\n"
                f"  Fathom    {found.tolist()[max(first - 3, 0):first + 5]}\n"
                f"  reference {list(wanted)[max(first - 3, 0):first + 5]}"
            )
    print(
        f"{name}: {len(texts)} texts, {sum(map(len, data))} bytes, {tokens} tokens are equal "
        f"(Fathom {seconds:.2f} s, reference {time.process_time() - start:.2f} s)",
        flush=True,
    )
