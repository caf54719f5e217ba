"""The queue: numbered, immutable slots in a folder, claims on tickets, and the run folder that holds them all."""
