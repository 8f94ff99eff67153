"""The job script, submitted by batchspawner, that runs a learner's JupyterLab under JupyterHub."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rankroom.scheduler import slurm
from rankroom.scheduler.site import Site, expand

NAME = "workshop"  # of the job

# JupyterHub requests a server on all addresses of the node. This one listens on the address by
# which the node reaches the hub. Its kernels use sockets in a folder of the learner's, not ports.
_SERVER = """\
run=$(mktemp -d /tmp/hub-XXXXXX)
server=
end() {
  rm -rf "$run"
  rm -f "$log"
  [ -z "$server" ] || kill $server 2>/dev/null || true
}
trap end TERM
trap 'echo "The job ends within two minutes: save your notebooks."' USR1

address=$("$python" -c '
import os, socket, urllib.parse
hub = urllib.parse.urlsplit(os.environ["JUPYTERHUB_API_URL"])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    probe.connect((hub.hostname, hub.port or 80))  # nothing is sent
    print(probe.getsockname()[0])
')
export JUPYTERHUB_SERVICE_URL=${JUPYTERHUB_SERVICE_URL/0.0.0.0/$address}
export JUPYTER_RUNTIME_DIR=$run
PATH=$(dirname "$(command -v "$python")"):$PATH
"""
# A signal ends `wait`, but not the server. The log is kept only after a failure.
_WAIT = """\
server=$!
status=0
while kill -0 $server 2>/dev/null; do
  status=0
  wait $server || status=$?
done
rm -rf "$run"
[ $status != 0 ] || rm -f "$log"
exit $status"""


def script(site: Site, home: str, command: str) -> str:
    """Return the job's script. `home` is the learner's, where the log of a failure stays; `command`
    is the hub's command that starts the server."""
    # Otherwise sbatch would use the folder in which the hub runs.
    there = (*site.job.extra, f"--chdir={shlex.quote(home)}")
    site = replace(site, job=replace(site.job, extra=there))
    lines = [
        f'python="{expand(site.environment.python)}"',
        f'log="$HOME/{NAME}-$SLURM_JOB_ID.log"',
        # Slurm has created it by then, with the hub's umask.
        'chmod 600 "$log" || true',
        *_SERVER.splitlines(),
        f"{command} &",
        *_WAIT.splitlines(),
    ]
    return slurm.script(site, NAME, home, lines)
