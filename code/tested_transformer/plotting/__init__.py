"""Heat maps, masks, arrows, curves and bars in one style, as SVG that is the same on every run.

`grids` and `charts` draw; `style` says how a picture looks, `layout` where its parts stand, and
`checks` reads and rounds the numbers.
"""

from .charts import arrows, bars, curves
from .grids import heat_map, heat_maps, mask_picture, mask_pictures
from .style import ALLOWED, HIDDEN, KEY, OUTPUT, QUERY, VALUE, Picture

__all__ = [
    "ALLOWED",
    "HIDDEN",
    "KEY",
    "OUTPUT",
    "QUERY",
    "VALUE",
    "Picture",
    "arrows",
    "bars",
    "curves",
    "heat_map",
    "heat_maps",
    "mask_picture",
    "mask_pictures",
]
