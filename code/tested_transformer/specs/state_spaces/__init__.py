"""The Specs of state spaces: the short convolution, the selective scan, and that of Mamba-2."""
