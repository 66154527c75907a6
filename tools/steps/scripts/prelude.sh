# Before each script of a step: the first command that fails ends it.
set -eu

# says WORDS COMMAND...: it ends well, and says these words.
says() {
    words=$1; shift
    "$@" > "$WORK/said" 2>&1 || { cat "$WORK/said"; echo "it failed: $*"; exit 1; }
    grep -qF -- "$words" "$WORK/said" || { cat "$WORK/said"; echo "it did not say '$words': $*"; exit 1; }
    echo "right: $*"
}

# fails WORDS COMMAND...: it ends otherwise than well, and not by `timeout`, and says these words.
fails() {
    words=$1; shift
    code=0; "$@" > "$WORK/said" 2>&1 || code=$?
    case $code in 0 | 124) cat "$WORK/said"; echo "it ended with $code: $*"; exit 1 ;; esac
    grep -qF -- "$words" "$WORK/said" || { cat "$WORK/said"; echo "it did not say '$words': $*"; exit 1; }
    echo "right: $*"
}

# job RANKS COMMAND...: a job of the command's launcher.
job() { ranks=$1; shift; timeout 130 "$COMITY" launch -n "$ranks" --timeout 100 -- "$@"; }

# A port of this machine that nobody has just now.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
