# Before each script of a step: the first command that fails ends it. What it says comes in its order: reasons stand at the end.
set -eu
exec 2>&1

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

# native: sets NATIVE and MACHINE, this machine's target. C that a dependency brings (AWS-LC, for AES-GCM) takes longer to compile than all
# of Comity, and is the same in every build. So builds with flags of their own, for sanitizers, fuzzing and loom, link the objects of the
# ordinary build: a table of cargo's configuration stands in for the build script of a crate that `links` something.
# (https://doc.rust-lang.org/cargo/reference/build-scripts.html#overriding-build-scripts)
native() {
    MACHINE=$(rustc -vV | sed -n 's/^host: //p') NATIVE=$WORK/native.toml
    ls "$BUILT"/debug/build/aws-lc-sys-*/output > "$WORK/said" 2>&1 || cargo build --workspace --all-targets
    said=$(ls -t "$BUILT"/debug/build/aws-lc-sys-*/output | head -n 1)
    version=$(sed -n '/^name = "aws-lc-sys"$/{n;s/^version = "\(.*\)"/\1/p}' Cargo.lock | tr . _)
    {
        echo "[target.$MACHINE.aws_lc_$version]"
        for key in rustc-link-search rustc-link-lib rustc-cfg; do
            sed -n "s/^cargo:$key=\(.*\)/'\1'/p" "$said" | paste -sd , | sed "s/..*/$key = [&]/"
        done
        sed -n "/^cargo:\(rustc-\|rerun-if-\|warning=\)/d; s/^cargo:\([^=]*\)=\(..*\)/\1 = '\2'/p" "$said"
    } > "$NATIVE"
    grep -q '^rustc-link-lib' "$NATIVE"
}
