"""Shell code that enters a folder only if it is the user's own, on a login node or in a job.

Where others may write to a site's scratch folder, they could create a folder in it before Rankroom
does, or replace it later; what they put there would run as the user. So a script enters the folder
first, then checks whose it is, and names files in it without the path.
"""

from __future__ import annotations

STATUS_REFUSED = 77  # exit status of `enter` when it refuses
# slurm/lab.sbatch has the same lines, as it must be readable and work on its own.
ENTER_FUNCTION = """\
enter() { # a folder of yours that other users may not write to
  [ -n "$(find "$1" -maxdepth 0 -user "$(id -u)")" ] && cd "$1" &&
    [ -n "$(find . -maxdepth 0 -type d -user "$(id -u)" ! -perm -020 ! -perm -002)" ] && return
  echo "$1 belongs to another user, or others may write to it: have it removed" >&2
  return 77
}
"""
STATUS_UNKNOWN = 74  # exit status of `present` where it cannot tell
PRESENT_FUNCTION = """\
present() { # whether something is there
  found=$(LC_ALL=C ls -d -- "$1" 2>&1) && return
  case $found in *": No such file or directory") return 1 ;; esac
  echo "$found"
  exit 74
}
"""
# Encloses a script's output: login shells print greetings, and warn of a missing locale.
MARK = "--- rankroom ---"


def marked(code: str) -> str:
    """Wrap `code` so that `said` finds its output among other output; its exit status stays."""
    return f'echo "{MARK}"; exec 2>&1\n(\n{code}\n)\ns=$?; echo; echo "{MARK}"; exit $s'


def said(output: str) -> str:
    """Return the output of code from `marked`; what there is of it if the code did not finish."""
    _, _, rest = output.partition(f"{MARK}\n")
    inside, end, _ = rest.rpartition(f"\n{MARK}")
    return inside if end else rest


# With `-m`, as the default ACL of a project's folder replaces the umask.
MAKE_SCRIPT = ENTER_FUNCTION + 'umask 077 && mkdir -p -m 700 "$1" && enter "$1"'
