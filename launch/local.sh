#!/usr/bin/env bash
# One run as N processes on this machine, for tests of what a cluster does: launch/local.sh N FLAGS...
#
#   launch/local.sh 2 --config=configs/coco_lm_base.py:tiny --workdir=runs/two
#
# Each process computes on the CPU and is one of N for JAX. SIGTERM and Ctrl-C reach all of them. The exit code
# is the first that is not 0. PYTHON=... names another interpreter than .venv/bin/python.
set -u

processes=${1:-}
if ! [[ $processes =~ ^[1-9][0-9]*$ ]] || [ $# -lt 2 ]; then
  echo "usage: launch/local.sh N --config=FILE [FLAGS of pretrain.main]" >&2
  exit 2
fi
shift
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-.venv/bin/python}
# The port stays bound, though process 0 may listen on it, so that no other program takes it in between.
coproc HOLDER { exec "$python" -c '
import signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
held.bind(("", 0))
print(held.getsockname()[1], flush=True)
sys.stdin.read()'; }
read -r port <&"${HOLDER[0]}" || exit 2
export JAX_PLATFORMS=cpu JAX_COORDINATOR_ADDRESS="localhost:$port" JAX_NUM_PROCESSES="$processes"

children=()
passed_on=
trap 'passed_on=yes; kill -TERM "${children[@]}" 2>/dev/null' TERM INT
for ((id = 0; id < processes; id++)); do
  JAX_PROCESS_ID=$id "$python" -m pretrain.main --config.train.multihost=true "$@" &
  children+=($!)
done

code=0
for child in "${children[@]}"; do
  while :; do
    passed_on=
    wait "$child"
    ended=$?
    [ -n "$passed_on" ] || break # else the signal ended the wait, not the child
  done
  if [ "$code" = 0 ]; then code=$ended; fi
done
exit "$code"
