"""Where programs that a policy wrote run, such that they can read, reach and use up little (`code_execution`).

    reward ── frames ──> launcher             one per call; a fresh interpreter that never learns what is expected
                           └── program        one per test: forked, confined, killed with its process group

The launcher, `confinement` and `filtering` are loaded by path and need nothing but Python: a program shares their memory, and starts
in about a millisecond.
"""
