# The C interface: libcomity installed as users install it, its symbols and layouts beside crates/comity-c/abi.txt, the programs of
# crates/comity-c/tests/c as jobs, and examples/c by pkg-config and by CMake.
prefix=$WORK/prefix
lib=$prefix/lib
"$TOOLBOX" c-install --prefix "$prefix" --debug
export PKG_CONFIG_PATH="$lib/pkgconfig"
strict="-Wall -Wextra -Wpedantic -Werror"
flags=$(pkg-config --cflags --libs comity)
tests=crates/comity-c/tests/c

# compile COMPILER FLAGS FILE NAME: a program of one file.
compile() { $1 $2 -g $strict "$3" -o "$WORK/$4" $flags -pthread -ldl "-Wl,-rpath,$lib"; }

# Exports are the functions of the table, each under the version node; beside the system's libraries none is needed.
table=crates/comity-c/abi.txt
awk '/^function / { split($0, part, "("); n = split(part[1], w, /[ *]/); print w[n] "@@COMITY_0" }' $table | sort > "$WORK/wanted"
nm -D --defined-only "$lib/libcomity.so.0" | awk '$NF != "COMITY_0" { print $NF }' | sort | diff "$WORK/wanted" -
symbols=$(grep -c . "$WORK/wanted")
needed=$(readelf -d "$lib/libcomity.so.0" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|gcc_s|pthread)\.so|ld-linux)' || true)
[ -z "$needed" ] || { echo "libcomity.so.0 needs $needed"; exit 1; }

# Structs lie as the table says, and enums have the size of an int; the headers are plain C and C++ for every compiler that is here.
awk 'BEGIN { print "#include <comity.h>" }
    function hold(what) { print "typedef char holds_" ++n "[(" what ") ? 1 : -1];" }
    $1 == "struct" && NF == 3 { s = $2; hold("sizeof(" s ") == " $3) }
    /^  / && NF == 2 { hold("offsetof(" s ", " $1 ") == " $2) }
    $1 == "enum" { sub(":", "", $2); hold("sizeof(" $2 ") == 4") }
    END { print "int main(void) { return 0; }" }' $table > "$WORK/layout.c"
[ "$(grep -c holds_ "$WORK/layout.c")" -gt 50 ]
printf '#include <comity.h>\n#include <comity.h>\nint main(void) { return COMITY_OK; }\n' > "$WORK/twice.c"
printf '#include <comity.hpp>\nint main() { comity::Group none; return none ? 1 : 0; }\n' > "$WORK/wrapper.cc"
for pair in "cc c++" "clang clang++"; do
    command -v "${pair%% *}" > "$WORK/said" || continue
    for name in layout twice; do
        cp "$WORK/$name.c" "$WORK/$name.cc"
        ${pair%% *} -std=c99 -fsyntax-only $strict "-I$prefix/include" "$WORK/$name.c"
        ${pair##* } -std=c++11 -fsyntax-only $strict "-I$prefix/include" "$WORK/$name.cc"
    done
    for standard in c++11 c++20; do
        ${pair##* } -std=$standard -fsyntax-only $strict "-I$prefix/include" "$WORK/wrapper.cc"
    done
done

for name in conformance faults misuse lifecycle twice; do compile cc -std=gnu99 "$tests/$name.c" $name; done
says "all right" "$WORK/misuse"
# A gate takes one number of ranks, and one kind of fault.
set -- 1 2 3 4
[ -n "${COMITY_TEST_DEEP-}" ] || set -- $((HAND + 1))
for n; do
    for link in shm tcp; do
        export COMITY_LINKS=$link
        [ "$n" = 1 ] && kind=none || kind=$link
        says "$n ranks, link $kind" job "$n" "$WORK/conformance"
    done
done
unset COMITY_LINKS
ran=$*
set -- killed mismatch timeout abort
[ -n "${COMITY_TEST_DEEP-}" ] || { shift "$HAND"; set -- "$1"; }
for kind; do
    for n in 2 3; do
        # Every rank but one that is killed says that it was told.
        code=0; job $n "$WORK/faults" "$kind" > "$WORK/said" 2>&1 || code=$?
        told=$(grep -c "rank [0-9] was told: $kind" "$WORK/said" || true)
        if [ "$kind" = killed ]; then told=$((told + 1)); [ $code != 0 ] && code=0 || code=1; fi
        [ "$told" = $n ] && [ $code = 0 ] || { cat "$WORK/said"; echo "$kind on $n ranks: $told were told"; exit 1; }
        echo "right: $kind on $n ranks"
    done
done
says "all right on rank 2 of 3" job 3 "$WORK/lifecycle"
# The same library under two names, both in one process.
cp "$lib/libcomity.so.0" "$WORK/libother.so"
says "all right with two libraries" job 2 "$WORK/twice" "$lib/libcomity.so.0" "$WORK/libother.so"

cp examples/c/*.c examples/c/*.cpp "$WORK"
cmake -S examples/c -B "$WORK/cmake" "-DCMAKE_PREFIX_PATH=$prefix" -G "Unix Makefiles" > "$WORK/said"
cmake --build "$WORK/cmake" > "$WORK/said"
example() {
    case $1 in
        wrapper) compile c++ -std=c++11 "$WORK/wrapper.cpp" wrapper ;;
        *) compile cc -std=c99 "$WORK/$1.c" "$1" ;;
    esac
    says "$2" job 2 "$WORK/$1"
    says "$2" job 2 "$WORK/cmake/$1"
}
example hello "rank 1 of 2: the sum is 1"
example allreduce "floats averaged over 2 ranks"
example overlap "8 layers added up over 2 ranks"
example wrapper "all right on 2 ranks"
says "rank 1 of 2: the sum is 1" job 2 "$WORK/cmake/hello_static"

# The communicator as a library, loaded by name as ggml finds it, over a stand-in for ggml.
cc -std=c99 -shared -fPIC "-I$tests/ggml" $strict examples/c/ggml.c -o "$WORK/libcomity-ggml.so" $flags "-Wl,-rpath,$lib"
compile cc "-std=gnu99 -I$tests/ggml" "$tests/ggml.c" ggml-test
says "without a launcher" "$WORK/ggml-test" "$WORK/libcomity-ggml.so"
says "added up on rank 0 of 1" job 1 "$WORK/ggml-test" "$WORK/libcomity-ggml.so"
says "added up on rank 1 of 2" job 2 "$WORK/ggml-test" "$WORK/libcomity-ggml.so"
fails "adds up contiguous tensors of F32 only" job 2 "$WORK/ggml-test" "$WORK/libcomity-ggml.so" refuse

# The book's page has hello.c; its commands for each library work; its configuration compiles.
page=docs/start/c.md
block() { awk -v number="$1" '/^```/ { if (inside) { inside = 0 } else if ($0 == "```c") { inside = ++n == number; next } } inside' $page; }
block 1 > "$WORK/page.c"
sed -n '/^#include/,$p' examples/c/hello.c | diff "$WORK/page.c" -
{ printf '#include <comity.h>\n#include <stdio.h>\nint main(void) {\nint rank = 0, size = 1;\n'; block 2
    printf 'return comity_group_free(group);\n}\n'; } > "$WORK/configured.c"
compile cc -std=c99 "$WORK/configured.c" configured
[ "$(grep -c '^cc hello.c ' $page)" = 2 ]
for n in 1 2; do
    command=$(grep '^cc hello.c ' $page | sed -n ${n}p)
    (cd "$WORK" && sh -c "$command")
    [ $n = 1 ] && path=$lib || path=
    LD_LIBRARY_PATH=$path says "rank 0 of 2: the sum is 1" job 2 "$WORK/hello"
done

if [ -n "${COMITY_TEST_DEEP-}" ]; then
    says "all right on rank 1 of 2" job 2 "$WORK/lifecycle"
    # The compiler's sanitizer sees all that the process takes and gives back, libcomity's included, and says at the end what nothing points
    # to any more. Not valgrind: it takes the system's vDSO away, which a dependency then still reads.
    for name in misuse conformance lifecycle; do
        compile cc "-std=gnu99 -fsanitize=address" "$tests/$name.c" $name-asan
    done
    says "all right" "$WORK/misuse-asan"
    says "all right" job 2 "$WORK/conformance-asan"
    says "all right" job 2 "$WORK/lifecycle-asan"
    [ -x "$PYTHON" ] || "$TOOLBOX" test --only prepare
    # JAX's own collectives over Comity, beside its gloo: PyPI's jaxlib loads the wrapper by this variable.
    cc -shared -fPIC -pthread "-Wl,-rpath,$lib" -Wall -Wextra examples/jax/mpiwrapper.c -o "$WORK/libcomity_mpi.so" $flags
    export MPITRAMPOLINE_LIB="$WORK/libcomity_mpi.so" PYTHONDONTWRITEBYTECODE=1
    for row in "2 mpi" "4 mpi" "2 gloo"; do
        n=${row% *}
        says "all right on rank $((n - 1)) of $n" job "$n" "$PYTHON" examples/jax/psum.py "127.0.0.1:$(free_port)" "${row#* }"
    done
fi
echo "=> $symbols symbols; conformance on $ran ranks; $* on 2 and 3; examples by pkg-config and CMake, the book's, ggml's"
