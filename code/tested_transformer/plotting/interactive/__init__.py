"""Pictures that answer: a reader chooses, and sees what the package computes for the choice.

Everything is computed in Python, in float64, and stored in the cell's output; a small script of the page only looks
it up. Without scripts a still picture stands there. `page` is what they share; `numbers` has the
picture of "The first ten minutes"; `settings` has pictures with sliders and switches, of which
`scale`, `masks` and `sampling` make one each.
"""

from .masks import mask_switches
from .numbers import END, NumberPicture, NumberTranslation, number_picture, translate_numbers
from .sampling import sampling_sliders
from .scale import scale_slider
from .settings import Setting, SettingsPicture

__all__ = [
    "END",
    "NumberPicture",
    "NumberTranslation",
    "Setting",
    "SettingsPicture",
    "mask_switches",
    "number_picture",
    "sampling_sliders",
    "scale_slider",
    "translate_numbers",
]
