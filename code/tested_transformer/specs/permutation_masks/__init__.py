"""The Specs of a permutation language model's masks."""
