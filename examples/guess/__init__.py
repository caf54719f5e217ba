"""Guess a number: a small environment with a tool, a state and a reward of its own."""
