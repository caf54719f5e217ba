"""A module of rewards whose import never ends."""

import os
import time
from pathlib import Path

if "HANGING_NOTE" in os.environ:
    Path(os.environ["HANGING_NOTE"]).write_text(f"{os.getpid()}\n")
time.sleep(600)
