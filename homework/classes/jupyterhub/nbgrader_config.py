"""nbgrader's settings for everybody on the hub: /etc/jupyter/nbgrader_config.py.

The course folder has settings of its own, homework/nbgrader_config.py.
"""

c = get_config()  # noqa: F821, nbgrader puts it there

c.CourseDirectory.course_id = "tested-transformer"
c.Exchange.root = "/srv/nbgrader/exchange"  # everybody may write here: mkdir -p, chmod 777
c.Exchange.timezone = "UTC"
