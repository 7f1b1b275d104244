#!/usr/bin/env python3
"""Checks that folders depend one way only, by their #include lines (.cu and .cuh files too).

proto <- core <- kernels <- parallel <- runtime <- launch; tests sees all, nobody sees tests.
Prints each violation and exits 1 when there is one.
"""

import pathlib
import re
import sys

ORDER = ["proto", "core", "kernels", "parallel", "runtime", "launch", "tests"]
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"/]+)/([^"]+)"')

# Headers that a folder may not see although it stands above their folder, by (folder, pattern).
FORBIDDEN = [
    # Kernels know neither jobs nor generated messages.
    ("kernels", re.compile(r"^(core/job\.h|proto/)")),
    ("parallel", re.compile(r"^proto/")),
    ("runtime", re.compile(r"^proto/job\.pb\.h")),
]


def violations(root):
    for folder in ORDER:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match or match.group(1) not in ORDER:
                    continue
                target = f"{match.group(1)}/{match.group(2)}"
                where = f"{path.relative_to(root)}:{number}"
                if ORDER.index(match.group(1)) > ORDER.index(folder):
                    yield f"{where}: {folder}/ may not include {target}"
                for source, pattern in FORBIDDEN:
                    if folder == source and pattern.match(target):
                        yield f"{where}: {folder}/ may not include {target}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = list(violations(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
