"""A tiny policy learns to call a calculator."""
