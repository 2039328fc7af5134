"""Homework: tasks with points, and a grader that runs a student's code where only arrays come out."""

from .tasks import check

__all__ = ["check"]
