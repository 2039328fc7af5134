"""Solutions of the exercises on fixed patterns."""

from answers import right, wrong
from answers.sparse_patterns import (
    fixed_by_product,
    fixed_by_sets,
    from_the_end,
    strided_by_diagonals,
    strided_by_sets,
    without_strides,
)

right("ch17.strided_mask", "by sets of keys")(strided_by_sets)
right("ch17.strided_mask", "by diagonals")(strided_by_diagonals)
right("ch17.fixed_mask", "by sets of keys")(fixed_by_sets)
right("ch17.fixed_mask", "by a product of blocks")(fixed_by_product)
wrong("ch17.strided_mask", "the window alone")(without_strides)
wrong("ch17.fixed_mask", "blocks counted from the end")(from_the_end)
