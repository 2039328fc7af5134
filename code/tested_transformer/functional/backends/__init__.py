"""The same formula in several ways. `attention()` checks the call; a backend answers it.

A backend is a module with two functions: `unsupported_reason(call)`, a sentence that says why it cannot serve
the call (None if it can), and `run(call)`.
"""

from . import flash, fused, plain, tiled

BACKENDS = {"plain": plain, "tiled": tiled, "fused": fused, "flash": flash}
