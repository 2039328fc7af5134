"""nbgrader's settings for the course: `make homework` reads them, and so does nbgrader called by hand."""

c = get_config()  # noqa: F821, nbgrader puts it there

c.CourseDirectory.course_id = "tested-transformer"
# An unfinished notebook runs from top to bottom: a stub answers nothing, and stops nothing.
c.ClearSolutions.code_stub = {"python": "# your code here\n..."}
c.ClearSolutions.text_stub = "*Your answer here.*"
