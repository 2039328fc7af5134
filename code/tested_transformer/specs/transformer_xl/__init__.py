"""The Specs of Transformer-XL: the relative shift, its attention and its memory."""
