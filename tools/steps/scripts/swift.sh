# The Swift package: built, tested and documented in a Debian that has Swift. With BUILD it is only compiled, beside the jobs of others.
debian=$BUILT/swift-root prefix=$BUILT/swift-prefix built=$BUILT/swift-build older=Package@swift-5.9.swift

# enter ROOT FOLDERS... -- COMMAND...: root's command in a Debian, where these folders lie under the same paths. It has a mount namespace of
# its own, so that no mount is left behind, however it ends.
enter() {
    unshare --mount --propagation private sh -c '
        new=$1; shift
        mount -t proc proc "$new/proc" && mount --rbind /dev "$new/dev" || exit 1
        while [ "$1" != -- ]; do
            mkdir -p "$new$1" && mount --bind "$1" "$new$1" || exit 1
            shift
        done
        shift
        exec chroot "$new" "$@"' enter "$@"
}
# within COMMAND...: in the repository there. Programs find the installed libcomity.
within() {
    enter "$debian" "$PWD" "$BUILT" -- env -C "$PWD" HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH="$prefix/lib" "$@"
}
# without_warning COMMAND...: it ends well, and shows none.
without_warning() {
    "$@" > "$WORK/said" 2>&1 || { cat "$WORK/said"; return 1; }
    cat "$WORK/said"
    ! grep -E 'warning:|error:' "$WORK/said"
}

# Made once, from the mirror and by the proxy that apt uses; Debian 13 is the first release with Swift. Elsewhere first: what is cut short
# is never taken for the whole, so nothing has to reach the disk in order.
if [ ! -d "$debian" ]; then
    echo "making a Debian with Swift, once: 3 GB"
    rm -rf "$debian.new"
    # The label of a mirror is known when its lists are there.
    mirror() { apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1; }
    [ -n "$(mirror)" ] || apt-get -o Acquire::Retries=5 update
    [ -n "$(mirror)" ] || { echo "apt knows no mirror of Debian"; exit 1; }
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "${proxy-}" ] || export http_proxy="$proxy"
    debootstrap --variant=minbase trixie "$debian.new" "$(mirror)"
    enter "$debian.new" -- env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=5 -o Dpkg::Options::=--force-unsafe-io install -y \
        --no-install-recommends swiftlang libc6-dev
    enter "$debian.new" -- apt-get clean
    mv "$debian.new" "$debian"
fi

"$TOOLBOX" c-install --prefix "$prefix" --debug
# A target that is not compiled again has shown its warnings before, and failed then.
without_warning within swift build --build-tests --scratch-path "$built" || { rm -rf "$built"; exit 1; }
if [ -n "${BUILD-}" ]; then
    echo "=> the package, its tests and examples, without a warning"
    exit
fi

within swift format lint --strict --recursive swift swift-mlx Package.swift $older
within timeout 400 swift test --skip-build --scratch-path "$built" > "$WORK/tests" 2>&1 || { cat "$WORK/tests"; exit 1; }
tests=$(grep '^[[:space:]]*Executed ' "$WORK/tests" | tail -n 1 | sed -n 's/.*Executed \([1-9][0-9]*\) tests*, with 0 failures.*/\1/p')
[ -n "$tests" ] || { cat "$WORK/tests"; echo "the tests did not say how many there were"; exit 1; }

# swift_job RANKS PROGRAM...: a job there.
swift_job() { ranks=$1; shift; within timeout 130 "$COMITY" launch -n "$ranks" --timeout 100 -- "$@"; }
says "rank 2 of 3: the sum is 3" swift_job 3 "$built/debug/hello"
says "rank 1 of 2: y = 3.0 x + 1.0" swift_job 2 "$built/debug/line"
says "rank 2: 8 layers summed over 3 ranks, in all 108.0" swift_job 3 "$built/debug/overlap"
says "rank 3 of 4: 192 weights, differs from one rank by 0.0" swift_job 4 "$built/debug/tensor-parallel"

# learnt PROGRAM...: loss and accuracy of the first epoch on two ranks.
learnt() {
    says accuracy swift_job 2 "$@" > "$WORK/learnt" || { cat "$WORK/learnt"; exit 1; }
    sed -n 's/.*loss *\([0-9.]*\) *accuracy *\([0-9.]*\).*/\1 \2/p' "$WORK/said" | head -n 1
}
# The example in Swift learns as the one in Rust.
in_swift=$(learnt "$built/debug/digits" data/digits.csv 1)
in_rust=$(learnt "$BUILT/debug/examples/digits" --epochs 1 --data data/digits.csv)
[ -n "$in_swift" ] && [ "$in_swift" = "$in_rust" ] || {
    echo "digits learns in Swift ($in_swift) otherwise than in Rust ($in_rust)"
    exit 1
}

# A program throws where libcomity is of another version, which it says with its own, also where that has nothing else; and where there is
# none.
other=$BUILT/swift-other
mkdir -p "$other"
echo '@_cdecl("comity_version") public func version() -> UInt32 { 90_900 }' > "$other/version.swift"
within swiftc -emit-library -o "$other/libcomity.so.0" "$other/version.swift"
beside() { within env LD_LIBRARY_PATH="$1" SWIFT_BACKTRACE=enable=no "$built/debug/hello"; }
fails "at top level: libcomity is of version 9.9.0, and this package is for" beside "$other"
fails "at top level: libcomity cannot be loaded: libcomity.so.0: cannot open shared object file" beside /nowhere

# The libraries compile by the manifest for Swift 5.9. The compiler is a newer one, in that language's mode. Everything anew: a file that is
# not compiled again shows no warning. The header of libcomity lies in `crates`.
if [ -n "${COMITY_TEST_DEEP-}" ]; then
    rm -rf "$BUILT/swift-5.9"
    mkdir "$BUILT/swift-5.9"
    cp $older "$BUILT/swift-5.9/Package.swift"
    ln -s "$PWD/swift" "$PWD/crates" "$BUILT/swift-5.9"
    without_warning within swift build --package-path "$BUILT/swift-5.9"
fi

# Documentation without a warning: symbols of each library, then its pages. Debian's compiler names its platform otherwise than Swift's own
# does.
include="-I $built/debug/Modules -I swift/Sources/CComity/include"
platform=$(within swiftc -print-target-info | sed -n 's/.*"triple": "\(.*\)",/\1/p')
rm -rf "$BUILT/swift-pages"
for library in Comity ComitySharding; do
    pages=$BUILT/swift-pages/$library
    mkdir -p "$pages"
    within swift symbolgraph-extract -module-name $library $include -target "$platform" -output-dir "$pages" -minimum-access-level public
    within /usr/libexec/swift/bin/docc convert swift/Sources/$library/*.docc --additional-symbol-graph-dir "$pages" \
        --output-path "$pages.doccarchive" --warnings-as-errors
done

# Examples in comments and pages compile, each in a function that has what it may use without making it; `do` lets it make that again.
# Imports are the file's.
find swift/Sources -name '*.swift' -o -name '*.md' | sort | xargs awk '
    BEGIN { print "import Comity\nimport ComitySharding" }
    FNR == 1 { inside = 0 }
    { line = $0; sub("^[ \t]*/// ?", "", line) }
    !inside && line == "```swift" { inside = 1; body = waits = ""; next }
    inside && line == "```" {
        printf "\nfunc example%d(_ group: Group) %sthrows {\n    var gradients: [Float] = [1]\n", ++number, waits
        printf "    let layers = [gradients]\n    do {\n%s    }\n}\n", body
        inside = 0
    }
    inside && line ~ /await / { waits = "async " }
    inside && line !~ /^import / { body = body "        " line "\n" }' > "$BUILT/swift-examples.swift"
within swiftc -typecheck -swift-version 6 -suppress-warnings $include "$BUILT/swift-examples.swift"
examples=$(grep -c '^func example' "$BUILT/swift-examples.swift")

# The page has the programs of two examples.
python3 -c 'import sys
page, *programs = (open(name).read() for name in sys.argv[1:])
for program in programs:
    assert "```swift\nimport Comity" + program.partition("import Comity")[2] + "```" in page, "the page has another program"
' docs/start/swift.md swift/Examples/hello/main.swift swift/Examples/line/main.swift
echo "=> $tests tests; 5 examples; DocC, $examples examples in it"
