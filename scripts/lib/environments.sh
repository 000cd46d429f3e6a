# shellcheck shell=bash
# Virtual environments beside the main one, for tests with other versions. Needs common.sh.

readonly ENVIRONMENTS=.venv/envs INTEGRATIONS=.venv/integrations
# The extras whose packages the unit tests import. The frameworks of integrations have environments of their own
# (scripts/integrations), with versions that fit together; torch (`train`) takes gigabytes.
readonly TESTED_EXTRAS=(report tokens hpc babyai swe terminal mcp pytest dev)

# find_python_version VERSION: print a Python of this version, from PATH or pyenv.
find_python_version() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# prepare_uv PYTHON: install uv into an environment of its own. It links packages from a cache that all environments share.
prepare_uv() {
    if [ -x "$ENVIRONMENTS/uv/bin/uv" ]; then return; fi
    rm -rf "$ENVIRONMENTS/uv"
    "$1" -m venv "$ENVIRONMENTS/uv"
    "$ENVIRONMENTS/uv/bin/python" -m pip install -qq --no-input --disable-pip-version-check uv </dev/null >&2 \
        || die "pip could not install uv; check the network, or PIP_INDEX_URL for another index."
}

# run_uv ARGUMENT...: run uv with pip's index and certificates.
run_uv() {
    (
        if [ -n "${PIP_CERT-}" ]; then export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}; fi
        if [ -n "${PIP_INDEX_URL-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi
        exec "$ENVIRONMENTS/uv/bin/uv" "$@"
    ) </dev/null
}

# make_environment NAME PYTHON [oldest]: make or update an environment with the project; with `oldest` it has the oldest
# version of each requirement that setup.cfg allows. uv finds these versions; pip cannot.
make_environment() {
    local place=$ENVIRONMENTS/$1 python=$2 wanted=highest fingerprint extras
    [ "${3-}" != oldest ] || wanted=lowest-direct
    fingerprint=$(cat setup.cfg scripts/lib/environments.sh <(pwd; "$python" --version) | sha256sum)
    if [ "$(cat "$place/.done" 2>/dev/null)" = "$fingerprint" ]; then return; fi
    say "making the environment $place with $("$python" --version)"
    prepare_uv "$python"
    rm -rf "$place"
    "$python" -m venv "$place"
    extras=$(IFS=,; printf '%s' "${TESTED_EXTRAS[*]}")
    run_uv pip install --quiet --python "$place/bin/python" --resolution "$wanted" --editable ".[$extras]" >&2 \
        || die "uv could not install into $place ($wanted versions); check the bounds in setup.cfg."
    [ "$wanted" = highest ] || say "oldest versions: $(run_uv pip freeze --python "$place/bin/python" | tr '\n' ' ')"
    printf '%s\n' "$fingerprint" >"$place/.done"
}

# make_integration NAME: make or update the environment of an integration, which has its framework and what its tests need.
make_integration() {
    local place=$INTEGRATIONS/$1 fingerprint
    fingerprint=$(cat setup.cfg scripts/lib/environments.sh "tests/integrations/$1/requirements.txt" <(pwd) | sha256sum)
    if [ "$(cat "$place/.done" 2>/dev/null)" = "$fingerprint" ]; then return; fi
    say "making the environment $place"
    prepare_uv .venv/bin/python
    rm -rf "$place"
    .venv/bin/python -m venv --without-pip "$place"
    run_uv pip install --quiet --python "$place/bin/python" pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis \
        mypy types-psutil types-PyYAML \
        --editable ".[${1//_/-}]" --requirement "tests/integrations/$1/requirements.txt" >&2 \
        || die "uv could not install into $place; check the bounds of the extra ${1//_/-} in setup.cfg."
    rm -rf ./*.egg-info # Python would find the entry points of an older checkout first
    printf '%s\n' "$fingerprint" >"$place/.done"
}

# run_unit_tests NAME [ARGUMENT]...: run the tests without an engine that are not slow in an environment. A warning is no error there:
# old versions warn about new versions of what they use themselves.
run_unit_tests() {
    local place=$ENVIRONMENTS/$1
    shift
    # The published packages are built and inspected by the main environment.
    "$place/bin/python" -m pytest --quiet -p no:cacheprovider -o filterwarnings= --numprocesses "${WORKERS:-$(nproc)}" -m "not slow" \
        --ignore tests/machine/test_packaging.py tests/unit tests/machine "$@"
}
