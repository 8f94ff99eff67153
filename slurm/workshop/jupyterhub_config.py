"""JupyterHub for a workshop: each learner's JupyterLab is a job of their own, by batchspawner.

A sysadmin copies this, reads it, and starts `jupyterhub -f jupyterhub_config.py` on a host that may
submit jobs. docs/workshop-centre.md leads there step by step; it needs JupyterHub, batchspawner,
Rankroom and npm's configurable-http-proxy, and the jobs' environment needs the first three, too.
"""

import os
import pwd
import socket
import sys
import time
from pathlib import Path

from batchspawner import SlurmSpawner
from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub import apihandlers
from tornado import web

from rankroom.errors import RankroomError
from rankroom.workshop import hub_job, workshop_plan

# -- 1. Yours.

# The teacher's plan, as you have read it: who may log in, and what each learner's job asks for.
PLAN = Path(os.environ.get("WORKSHOP_PLAN", "/etc/jupyterhub/workshop.toml"))
# The hub's database, cookie secret and process ids; systemd's StateDirectory= makes it.
STATE = Path(os.environ.get("STATE_DIRECTORY", "/var/lib/jupyterhub"))
# By which name or address compute nodes reach this host.
HUB = os.environ.get("HUB_ADDRESS") or socket.gethostname()
# What makes a command run as the learner; `sudo` where the hub has an account of its own.
AS_LEARNER = "runuser -u {username} --" if os.geteuid() == 0 else "sudo -n -E -u {username}"


def teacher():
    """Return the account of the workshop's folder; "" if there is none yet, or that is unknown."""
    try:
        return Path(plan.folder).owner()
    except FileNotFoundError:
        return ""
    except (OSError, KeyError) as error:  # this account may not look there, say
        print(f"who teaches is unknown: {plan.folder}: {error}", file=sys.stderr)
        return ""


c = get_config()  # noqa: F821
plan = workshop_plan.read(PLAN)
if not STATE.is_dir() or STATE.stat().st_mode & 0o077 or STATE.stat().st_uid != os.geteuid():
    raise SystemExit(
        f"{STATE} is not a folder that this account alone may enter: `install -d -m 700`"
    )

# -- 2. Who may come in. JupyterHub asks PAM unless you choose another authenticator here.

c.Authenticator.allowed_users = {*plan.learners}
c.Authenticator.allow_all = not plan.learners
if TEACHER := teacher():
    c.Authenticator.allowed_users |= {TEACHER}  # who is no administrator

# -- 3. What listens where. Your TLS proxy leads https://… to the first of these ports.

c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:8001"
c.JupyterHub.hub_ip = HUB  # jobs ask the hub here, with their token: keep other networks out
c.JupyterHub.hub_port = 8081
c.JupyterHub.db_url = f"sqlite:///{STATE}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = f"{STATE}/cookie_secret"
c.JupyterHub.pid_file = f"{STATE}/jupyterhub.pid"
c.ConfigurableHTTPProxy.pid_file = f"{STATE}/proxy.pid"
c.JupyterHub.cleanup_servers = False  # jobs outlive a restart of the hub

# -- 4. The learner's job.


class WorkshopSpawner(SlurmSpawner):
    """Submits what the plan says, for no longer than the workshop lasts."""

    async def start(self):
        try:
            return await super().start()
        except (RuntimeError, RankroomError) as error:
            # The learner reads what Slurm says, instead of a number.
            raise web.HTTPError(409, str(error)) from None

    async def _get_batch_script(self, **subvars):
        now = time.time()
        if plan.is_over(now):
            raise RuntimeError(f"the workshop {plan.name} is over")
        if self.user.name != teacher():
            plan.demand_begun(now)  # not of the teacher, who tries it on the day before
        home = pwd.getpwnam(self.user.name).pw_dir
        return hub_job.script(plan.of_site(now), home, self.cmd_formatted_for_batch())


class PortHandler(BatchSpawnerAPIHandler):
    """Takes the port that a learner's server listens on. Batchspawner's own takes whatever the
    learner's token sets, such as the commands that the hub runs."""

    def get_json_body(self):
        body = super().get_json_body()
        if not isinstance(body, dict) or not isinstance(body.get("port"), int):
            raise web.HTTPError(400, "a job tells its port, and nothing else")
        return {"port": body["port"]}


apihandlers.default_handlers[:] = [
    (path, PortHandler if handler is BatchSpawnerAPIHandler else handler)
    for path, handler in apihandlers.default_handlers
]

c.JupyterHub.spawner_class = WorkshopSpawner
c.SlurmSpawner.exec_prefix = AS_LEARNER
c.Spawner.env_keep = ["PATH", "LANG"]  # for sbatch; nothing else of the hub's environment
# The learner's server takes the seat that the teacher sees, and copies the lessons.
c.Spawner.environment = {"RANKROOM_WORKSHOP": plan.folder}
c.Spawner.args = ["--KernelManager.transport=ipc"]  # other users of the node read ports
c.Spawner.disable_user_config = True  # no learner's settings open the server to others
c.Spawner.default_url = f"/lab/tree/{plan.first_notebook}"
c.Spawner.start_timeout = 900  # seconds in the queue before the hub gives up
c.Spawner.http_timeout = 120
c.SlurmSpawner.startup_poll_interval = 5.0  # one `squeue` for each learner whose job waits

# Notebooks of your own instead of the course's, with nbgitpuller in the jobs' environment:
# c.Spawner.default_url = "/git-pull?repo=https%3A%2F%2Fgit.your.site%2Fours&urlpath=lab/tree/ours"
