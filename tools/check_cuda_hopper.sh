#!/usr/bin/env bash
# Runs every Hopper kernel on odd shapes under compute-sanitizer: memcheck (addresses), racecheck (shared memory) and
# synccheck (barriers). Needs a Hopper GPU and the CUDA toolkit's compute-sanitizer.
#
#   tools/check_cuda_hopper.sh [memcheck|racecheck|synccheck ...]      all of them without an argument
#   PYTHON=.venv/bin/python PARTS=quantizations SEED=1 tools/check_cuda_hopper.sh racecheck
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
checks=("$@")
[ "${#checks[@]}" -gt 0 ] || checks=(memcheck racecheck synccheck)

for check in "${checks[@]}"; do
  case $check in
    # torch probes addresses with calls that may fail: those are no errors.
    memcheck) options=(--report-api-errors no) ;;
    racecheck | synccheck) options=() ;;
    *) echo "check_cuda_hopper: must be memcheck, racecheck or synccheck, got $check" >&2; exit 2 ;;
  esac
  echo "== compute-sanitizer --tool $check ${options[*]} $python tools/hopper_odd_shapes.py"
  compute-sanitizer --tool "$check" "${options[@]}" --error-exitcode 1 --print-limit 20 \
    "$python" tools/hopper_odd_shapes.py --seed "${SEED:-0}" ${PARTS:-}
done
