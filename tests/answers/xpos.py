"""The answers to xPos."""

from __future__ import annotations

import torch

from tested_transformer.positions.rotary import apply_rotary
from tested_transformer.positions.xpos import apply_xpos

from . import right, wrong
from .spoiled import spoil


def xpos(
    x, position_ids, of_keys=False, base=10000.0, scale_base=512.0, center=0, layout="interleaved"
):
    """Complex numbers: one factor of each pair turns it and shrinks it."""
    size = x.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(0, size, 2).double() / size
    places = position_ids.double()[..., None]
    exponents = (places - center) / scale_base * (-1 if of_keys else 1)
    factor = torch.polar(((pairs + 0.4) / 1.4) ** exponents, places * base**-pairs).unsqueeze(-3)
    shape = (-1, 2) if layout == "interleaved" else (2, -1)
    axis = -1 if layout == "interleaved" else -2
    a, b = x.to(wide).unflatten(-1, shape).unbind(axis)
    turned = torch.complex(a, b) * factor.to(
        torch.complex128 if wide == torch.float64 else torch.complex64
    )
    return torch.stack((turned.real, turned.imag), axis).flatten(-2).to(x.dtype)


right("apply_xpos", "the library's")(apply_xpos)
right("apply_xpos", "complex numbers")(xpos)
spoil("apply_xpos", xpos, "x")


@right("apply_xpos")
def by_logarithms(
    x, position_ids, of_keys=False, base=10000.0, scale_base=512.0, center=0, layout="interleaved"
):
    """exp(e log z) in place of a power."""
    size = x.shape[-1]
    logs = torch.log((torch.arange(0, size, 2).double() / size + 0.4) / 1.4)
    logs = logs.repeat_interleave(2) if layout == "interleaved" else torch.cat((logs, logs))
    exponents = (position_ids.double() - center).unsqueeze(-1) / scale_base * logs
    decay = torch.exp(-exponents if of_keys else exponents).unsqueeze(-3)
    wide = torch.promote_types(x.dtype, torch.float32)
    turned = apply_rotary(x.to(wide), position_ids, base=base, layout=layout)
    return (turned * decay.to(wide)).to(x.dtype)


for name, change in {
    "no decay": lambda x, p, o: apply_rotary(
        x, p, **{n: v for n, v in o.items() if n in ("base", "layout")}
    ),
    "no rotation": lambda x, p, o: xpos(x, p, **o | {"base": 1e30}),
    "always a query": lambda x, p, o: xpos(x, p, **o | {"of_keys": False}),
    "always a key": lambda x, p, o: xpos(x, p, **o | {"of_keys": True}),
    "a scale_base of 512": lambda x, p, o: xpos(x, p, **o | {"scale_base": 512.0}),
    "always interleaved": lambda x, p, o: xpos(x, p, **o | {"layout": "interleaved"}),
    "a base of 10000": lambda x, p, o: xpos(x, p, **o | {"base": 10000.0}),
    "centered on the middle of what came": lambda x, p, o: xpos(
        x, p, **o | {"center": int(p.double().mean()) if p.numel() else 0}
    ),
    "positions of the first sequence": lambda x, p, o: xpos(x, p[:1] if p.ndim == 2 else p, **o),
    "counted along the sequence": lambda x, p, o: xpos(x, torch.arange(x.shape[2]), **o),
    "twice the decay": lambda x, p, o: xpos(
        x, p, **o | {"scale_base": o.get("scale_base", 512.0) / 2}
    ),
    "rounded to bfloat16": lambda x, p, o: xpos(x, p, **o).bfloat16().to(x.dtype),
}.items():
    wrong("apply_xpos", name)(
        lambda x, position_ids, change=change, **o: change(x, position_ids, o)
    )
