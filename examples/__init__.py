"""Runs of real models, each a folder with its own README."""
