"""The Specs of LSH attention: the hash, and attention among what it brings together."""
