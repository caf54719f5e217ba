"""Checkpoints: all that a learner needs to go on, in one folder and out again, bit for bit.

A checkpoint holds the weights; AdamW's moments and step counts; what the run counts, its floor and its done set
(`CheckpointState`); and whatever parts of the run keep beside them, as named tensors and JSON values. It holds no random
stream, since all are seeded anew from (run seed, step), and no scheduler, since the rate is a function of the number of
updates. The order of prompts is a function of (data seed, ticket).
"""
