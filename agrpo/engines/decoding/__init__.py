"""The batched sampler behind the engine `transformers`: torch's home in this room.

engine.py    the door: what asyncio calls
worker.py    the one thread that decodes, and what it does between two steps
cohort.py    a batch of requests that were admitted together
sampler.py   from logits to tokens
model.py     the network and its weights
calls.py     one `complete(...)`, and the requests in it
"""
