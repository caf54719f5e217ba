"""Instruments: what people look at. Each shows what was recorded, and keeps no books of its own.

What has to be fresh reads the run folder (`history.follow`); what has to be complete asks the database.
"""
