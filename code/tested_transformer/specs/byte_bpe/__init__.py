"""Byte-level byte-pair encoding: its training, its tokens and the way back."""
