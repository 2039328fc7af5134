"""The Specs of speculative decoding."""
