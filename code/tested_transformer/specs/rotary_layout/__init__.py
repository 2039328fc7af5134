"""Moving weights from one layout of rotary positions to the other."""
