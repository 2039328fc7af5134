"""A JupyterHub for one course on one Linux server: accounts of the server log in, each gets a JupyterLab.

Start it as root: jupyterhub -f jupyterhub_config.py
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821, JupyterHub puts it there
BIN = Path(sys.executable).parent

c.JupyterHub.bind_url = "http://127.0.0.1:8000"  # a web server with a certificate stands in front
c.Spawner.cmd = [str(BIN / "jupyterhub-singleuser")]
c.Spawner.default_url = "/lab"
c.Spawner.args = ["--LabApp.news_url=None"]
c.Spawner.environment = {
    "OMP_NUM_THREADS": "1",  # for each student: torch takes every processor of the server otherwise
    "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")]),  # nbgrader, in a terminal too
}
c.Spawner.http_timeout = 120  # seconds in which a server must answer; many start at once

# Every account of the server may log in. The account `instructor` owns the course folder.
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"instructor"}
