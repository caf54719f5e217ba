"""A calculator: the policy learns to call tools for sums that it cannot do in its head."""
