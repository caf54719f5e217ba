"""What losses are written with: plain functions over flat tensors."""
