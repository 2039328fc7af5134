"""The Specs of rotary positions."""
