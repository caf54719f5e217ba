"""Weights on their way from the learner to the engines. One backend a file: publisher and receiver together."""
