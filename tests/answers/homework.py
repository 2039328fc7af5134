"""The assignments' own solutions, which must pass: the grader draws its seed."""

from solutions import assignment_solutions
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.tasks import Task

from . import right

for _name in assignment_names():
    for _part in assignment(_name).coded:
        if isinstance(_part, Task):
            right(_part.name, "the assignment's")(assignment_solutions(_name)[_part.function])
