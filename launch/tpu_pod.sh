#!/usr/bin/env bash
# Pretraining on a Cloud TPU slice, on all its hosts: launch/tpu_pod.sh VERB [FLAGS...]
#
#   export NAME=pod ZONE=us-west4-a
#   launch/tpu_pod.sh create v5litepod-16        makes the slice (it costs from now on); --spot and the like are gcloud's
#   STORE=10.0.0.2:/share launch/tpu_pod.sh setup   copies this checkout, installs, mounts the NFS share at /store
#   launch/tpu_pod.sh run --config=configs/amos_base.py --workdir=/store/runs/amos
#   launch/tpu_pod.sh stop                       saves and ends the run; the same `run` continues it
#   launch/tpu_pod.sh delete
#
# JAX finds the processes from the machines' metadata. VERSION is the software of the slice's machines: by
# default that of v5e; v2-alpha-tpuv5 for v5p, v2-alpha-tpuv6e for v6e (`gcloud compute tpus versions list`).
set -eu

: "${NAME:?the name of the slice, for example NAME=pod}" "${ZONE:?its zone, for example ZONE=us-west4-a}"
folder=text_encoder
tpu() { gcloud compute tpus tpu-vm "$@" --zone="$ZONE"; }
everywhere() { tpu ssh "$NAME" --worker=all --command="$1"; }

verb=${1:-}
[ $# -eq 0 ] || shift
case $verb in
  create)
    kind=${1:?the type, for example v5litepod-16}
    shift
    tpu create "$NAME" --accelerator-type="$kind" --version="${VERSION:-v2-alpha-tpuv5-lite}" "$@"
    ;;
  setup)
    cd "$(dirname "$0")/.."
    archive=$(mktemp)
    trap 'rm -f "$archive"' EXIT
    git archive --format=tar.gz --output="$archive" HEAD
    tpu scp "$archive" "$NAME:$folder.tar.gz" --worker=all
    everywhere "set -e; mkdir -p $folder; tar -xzf $folder.tar.gz -C $folder; cd $folder
      sudo apt-get update -q; sudo apt-get install -q -y python3.11-venv nfs-common
      python3.11 -m venv .venv; .venv/bin/python -m pip install -q -r requirements-tpu.txt
      if [ -n '${STORE:-}' ]; then sudo mkdir -p /store; mountpoint -q /store || sudo mount -t nfs '${STORE:-}' /store; fi"
    ;;
  run)
    flags=$(printf ' %q' --config.train.multihost=true --config.train.platform=tpu "$@")
    everywhere "cd $folder; exec .venv/bin/python -m pretrain.main$flags"
    ;;
  stop) everywhere "pkill -TERM -f '^.venv/bin/python -m pretrain.main' || true" ;;
  delete) tpu delete "$NAME" --quiet ;;
  *)
    echo "usage: NAME=... ZONE=... launch/tpu_pod.sh create TYPE [FLAGS...]|setup|run FLAGS...|stop|delete" >&2
    exit 2
    ;;
esac
