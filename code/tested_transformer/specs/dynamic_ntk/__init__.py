"""The base of rotary positions under dynamic NTK."""
