"""One model at a time: while transformers loads one, it keeps state in the process that a second thread would disturb.

Seen with stages as threads: a tied head was "missing" and drawn anew. Whoever loads a model holds `LOADING`.
"""

from __future__ import annotations

import threading

LOADING = threading.Lock()
