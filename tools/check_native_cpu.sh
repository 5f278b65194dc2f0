#!/usr/bin/env bash
# Builds native_cpu's selfcheck (random problems on every instruction set against a plain FP64 evaluation, no Python) and
# runs it: as it is, under AddressSanitizer and UndefinedBehaviorSanitizer, under ThreadSanitizer, and, where qemu-x86_64
# is installed, on an emulated processor of 2008 that has no AVX.
#
#   tools/check_native_cpu.sh [plain|asan|tsan|qemu ...]      all of them without an argument
#   PROBLEMS=100000 PYTHON=.venv/bin/python tools/check_native_cpu.sh plain
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
problems=${PROBLEMS:-2000}

build() { # name, compiler flags
  cmake -S . -B "build/check_$1" -DMXGEMM_SELFCHECK=ON -DPython_EXECUTABLE="$python" -DCMAKE_CXX_FLAGS="$2" \
    -DCMAKE_EXE_LINKER_FLAGS="$2" >/dev/null
  cmake --build "build/check_$1" --target selfcheck -j 2 >/dev/null
}

run() { # name, flags, runner ...
  local name=$1 flags=$2
  shift 2
  build "$name" "$flags"
  echo "== $name: g++ $(g++ -dumpfullversion) $flags; $*"
  "$@" "build/check_$name/csrc/native_cpu/selfcheck" "$problems" "${SEED:-1}"
}

for check in "${@:-plain asan tsan qemu}"; do
  for name in $check; do
    case $name in
      plain) run plain "" env ;;
      asan) run asan "-fsanitize=address,undefined -fno-sanitize-recover=all -g" env ;;
      tsan) run tsan "-fsanitize=thread -g" env ;;
      qemu) run plain "" qemu-x86_64 -cpu Nehalem ;;
      *) echo "check_native_cpu: must be plain, asan, tsan or qemu, got $name" >&2; exit 2 ;;
    esac
  done
done
