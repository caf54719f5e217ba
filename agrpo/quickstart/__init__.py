"""The quickstart: a tiny policy made from nothing in a minute, and a question set on which training it shows.

`tasks` says what is asked, `warm_start` teaches the policy a little by demonstration, `prepare` writes everything a run
needs into one folder, `evaluate` and `plots` show what the run changed.
"""
