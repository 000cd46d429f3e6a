# shellcheck shell=bash
# Install what the tests of training need: torch, Hugging Face datasets, and atroposlib's API server. Needs common.sh.
#
# All of it is in the virtual environment, for tests only. atroposlib depends on wandb, transformers, polars and more,
# which its server does not use. So the server has its own environment with only the packages that it imports.

readonly TORCH=2.13.0 ATROPOSLIB=0.4.0
readonly TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# wants_training: whether to prepare this; the ordinary user of root's second track runs none of these tests.
wants_training() { [ "$(id -un)" != "$TEST_USER" ]; }

# prepare_training VENV: install the missing packages.
prepare_training() {
    local venv=$1
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then install_torch "$venv"; fi
    pip_install "$venv" --editable '.[train]' || die "pip could not install the packages for training; check the network."
    if [ ! -x "$venv/atroposlib/bin/run-api" ]; then install_atroposlib "$venv/atroposlib"; fi
    say "for the tests of training: $("$venv/bin/python" -c 'import torch; print("torch", torch.__version__)')," \
        "atroposlib $ATROPOSLIB's server in $venv/atroposlib"
}

pip_install() {
    local venv=$1
    shift
    "$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check "$@" </dev/null >&2
}

# install_torch VENV: install the CPU build of torch if available: the GPU build takes gigabytes.
install_torch() {
    say "installing torch"
    pip_install "$1" "torch==$TORCH+cpu" 2>/dev/null && return
    pip_install "$1" --retries 0 --timeout 10 --index-url "$TORCH_CPU_INDEX" torch 2>/dev/null && return
    say "the CPU build of torch is not available; installing the GPU build, 2.5 GB"
    pip_install "$1" torch || die "pip could not install torch; check the network."
}

# install_atroposlib DIRECTORY: install its package without dependencies, and the two packages that its server imports.
install_atroposlib() {
    rm -rf "$1"
    "$python" -m venv "$1"
    pip_install "$1" fastapi uvicorn && pip_install "$1" --no-deps "atroposlib==$ATROPOSLIB" \
        || die "pip could not install atroposlib's server; check the network."
}
