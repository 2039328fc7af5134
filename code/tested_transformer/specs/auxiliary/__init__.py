"""The auxiliary losses of the character Transformer."""
