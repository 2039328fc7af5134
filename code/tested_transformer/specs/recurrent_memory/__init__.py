"""The Spec of the Recurrent Memory Transformer."""
