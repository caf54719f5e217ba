"""`python -m tests.protocol NAME [without RULE]`: explore one configuration, or every one without a name."""

from __future__ import annotations

import sys

from tests.protocol.configurations import CONFIGURATIONS
from tests.protocol.search import search


def main(arguments: list[str]) -> int:
    names = arguments[:1] or list(CONFIGURATIONS)
    without = arguments[2] if arguments[1:2] == ["without"] else None
    found = {}
    for name in names:
        found[name] = search(CONFIGURATIONS[name], without=without)
        print(f"{name}: {found[name]}", flush=True)
    return int(any(one.violation for one in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
