"""Rewards that live elsewhere: how they are asked."""
