"""Environments that live elsewhere, by name: each module is a part whose fields are its settings and whose call makes an instance.

docs/environments.md says how one is written. Packages add theirs through entry points of the same name.
"""
