"""The Spec of dynamic convolution."""
