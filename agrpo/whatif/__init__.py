"""What if: another reward or advantage over the rollouts of a run, beside its facts and never in their place.

Nothing is generated or trained. `question.py` refuses what cannot be asked before anything is written, `asking.py` judges the
recorded groups and writes what came of each, and `summary.py` says what would have been otherwise.
"""
