"""What the packings of this room share: the terms of a row."""
