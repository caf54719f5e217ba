"""The database: what a run has written so far, as tables and views for SQL.

`run.duckdb` is a projection of the run folder. It is written by one process, the recorder, and read by anyone; nothing
is ever resumed from it, so it can be deleted at any time and is built again.
"""
