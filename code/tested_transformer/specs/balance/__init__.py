"""The Specs of balance among experts: the loss, the z-loss, the bias's step, the capacity."""
