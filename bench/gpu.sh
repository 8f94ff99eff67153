#!/bin/sh
# One command for a machine with GPUs: checks and measures all that ranks do with them, within ten
# minutes, and prints one table. `bench/gpu.sh [--rehearse] [--list] [NAME …]`; see bench/gpu.py.
root=$(cd "$(dirname "$0")/.." && pwd)
if [ ! -x "$root/.venv/bin/rankroom" ] || [ ! -x "$root/.venv/bin/horovodrun" ]; then
  echo "bench/gpu.sh: this checkout is not set up: \`make set-up\` first" >&2
  exit 2
fi
export PATH="$root/.venv/bin:$PATH" RANKROOM_CACHE="${RANKROOM_CACHE:-$root/.cache}"
exec python "$root/bench/gpu.py" "$@"
