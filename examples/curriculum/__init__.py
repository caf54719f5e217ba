"""A curriculum: which rows are asked depends on the epoch, by a rollout loop of one hook."""
