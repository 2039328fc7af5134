"""The Spec of YOCO, the decoder that caches once."""
