"""Worked sums in front of some questions, by a function that makes the completions itself."""
