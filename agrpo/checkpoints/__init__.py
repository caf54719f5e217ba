"""Checkpoints: all that a learner needs to go on, in one folder and out again, bit for bit."""
