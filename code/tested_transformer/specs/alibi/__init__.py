"""The Specs of ALiBi."""
