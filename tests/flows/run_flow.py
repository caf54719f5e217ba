"""A program that runs the flow `train`: `run_flow.py RUN STAGE...`."""

from __future__ import annotations

import sys

from flows.server import ensure_api
from flows.train import train

if __name__ == "__main__":
    ensure_api()
    train(run=sys.argv[1], stages=sys.argv[2:])
