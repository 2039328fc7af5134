"""Solutions of the exercise on Mamba's short convolution."""

from answers import right, wrong
from answers.state_spaces import by_shifts, by_windows, detached_window, wrong_end

right("ch20.short_convolution", "a sum of shifted texts")(by_shifts)
right("ch20.short_convolution", "token by token")(by_windows)
wrong("ch20.short_convolution", "the end of torch's padding")(wrong_end)
wrong("ch20.short_convolution", "no gradient through the state")(detached_window)
