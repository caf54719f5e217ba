"""The nouns: frozen records that stages write, read and hand over. They import nothing of agrpo but errors."""
