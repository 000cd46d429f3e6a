# shellcheck shell=bash
# What the tests of training need beside the rest: torch, Hugging Face datasets, and atroposlib's API server. Needs
# common.sh.
#
# All of it lies in the virtual environment, and is for tests only. atroposlib depends on wandb, transformers, polars
# and more, of which its server uses nothing; so it gets an environment of its own, with what the server imports.

readonly TORCH=2.13.0 ATROPOSLIB=0.4.0
readonly TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# wants_training: the ordinary user of root's second track runs none of these tests.
wants_training() { [ "$(id -un)" != "$TEST_USER" ]; }

# prepare_training VENV: install what is missing.
prepare_training() {
    local venv=$1
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then install_torch "$venv"; fi
    pip_install "$venv" --editable '.[train]' || die "pip could not install what training needs; check the network."
    if [ ! -x "$venv/atroposlib/bin/run-api" ]; then install_atroposlib "$venv/atroposlib"; fi
    say "for the tests of training: $("$venv/bin/python" -c 'import torch; print("torch", torch.__version__)')," \
        "atroposlib $ATROPOSLIB's server in $venv/atroposlib"
}

pip_install() {
    local venv=$1
    shift
    "$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check "$@" </dev/null >&2
}

# install_torch VENV: a build for processors only, where one can be had: the other brings gigabytes for GPUs.
install_torch() {
    say "installing torch"
    pip_install "$1" "torch==$TORCH+cpu" 2>/dev/null && return
    pip_install "$1" --retries 0 --timeout 10 --index-url "$TORCH_CPU_INDEX" torch 2>/dev/null && return
    say "there is no build of torch for processors only within reach; installing the one for GPUs, 2.5 GB"
    pip_install "$1" torch || die "pip could not install torch; check the network."
}

# install_atroposlib DIRECTORY: its package alone, with the two that its server imports.
install_atroposlib() {
    rm -rf "$1"
    "$python" -m venv "$1"
    pip_install "$1" fastapi uvicorn && pip_install "$1" --no-deps "atroposlib==$ATROPOSLIB" \
        || die "pip could not install atroposlib's server; check the network."
}
