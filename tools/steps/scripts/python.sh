# The Python package: installed as a user installs it, then its linter and its tests.
"$TOOLBOX" step package python "$SIZE"
"$PYTHON" -m ruff check --quiet
"$PYTHON" -m ruff format --quiet --check
# Stands in for NCCL and a driver in tests of device memory; of the same build.
export COMITY_TEST_SOFTNCCL="$BUILT/debug/libsoftnccl.so"
# Each folder has a conftest of its own, and Python knows one module of that name at a time. They run side by side: both wait a good deal, and
# their limits are far from what they take. That of all is for tests that hang.
pytest() { timeout 1800 "$PYTHON" -m pytest -q "$@"; }
pytest python/tests/pytorch > "$WORK/torch" 2>&1 & torch=$!
pytest python/tests --ignore=python/tests/pytorch > "$WORK/others" 2>&1 || failed=others
wait $torch || failed=torch
cat "$WORK/torch" "$WORK/others"
[ -z "${failed-}" ] || { cat "$WORK/$failed"; exit 1; }
# One that was skipped has shown nothing.
for file in torch others; do
    last=$(grep ' passed' "$WORK/$file" | tail -n 1)
    case $last in "" | *skipped*) echo "tests were left out: '$last'"; exit 1 ;; esac
done
