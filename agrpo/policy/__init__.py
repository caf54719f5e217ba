"""The policy: the language model that is trained, and one step of its training. Torch lives here.

`model` loads, `logprobs` reads rows, `update` takes a step, `optimizer` says how far, `digest` and `probe` tell what
came out.
"""
