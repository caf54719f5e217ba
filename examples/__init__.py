"""Runs to begin with, each a folder with its run file."""
