"""Shell that enters a folder of the user's own, and no other, on a login node or in a job.

Where others may write to a site's scratch folder, they may make a folder in it before Rankroom
does, or put another one in its place later: what they planted there would be run as the user. So a
script enters the folder first, then looks whose it is, and names files in it without the path.
"""

from __future__ import annotations

REFUSED = 77  # the status with which `enter` refuses
# slurm/lab.sbatch has the same lines, as it is a script to read and to submit alone.
ENTER = """\
enter() { # a folder of yours that other users may not write to
  [ -n "$(find "$1" -maxdepth 0 -user "$(id -u)")" ] && cd "$1" &&
    [ -n "$(find . -maxdepth 0 -type d -user "$(id -u)" ! -perm -020 ! -perm -002)" ] && return
  echo "$1 belongs to another user, or others may write to it: have it removed" >&2
  return 77
}
"""
# Begins and ends what a script says: login shells greet, and warn of a locale that is not there.
_MARK = "--- rankroom ---"


def marked(code: str) -> str:
    """`code`, whose output `said` finds among what else comes from there; its status stays."""
    return f'echo "{_MARK}"; exec 2>&1\n(\n{code}\n)\ns=$?; echo; echo "{_MARK}"; exit $s'


def said(output: str) -> str:
    """What the code of `marked` has written; all of it so far, if it did not come to its end."""
    _, _, rest = output.partition(f"{_MARK}\n")
    inside, end, _ = rest.rpartition(f"\n{_MARK}")
    return inside if end else rest


MAKE = ENTER + 'umask 077 && mkdir -p "$1" && enter "$1"'
