# Installs libcomity, as `cargo-c` would: the shared library with a name and symbol versions of its own, the archive, headers, and what
# pkg-config, CMake and Swift need to find them.
#
#     c-install.sh PREFIX ARCHIVE
#
# CC is a compiler that links for the system, which is macOS with MACOS, STRIP a program that takes debug information out of an archive, or none.
#
# cargo makes an archive of all that Comity is. The shared library is linked from it here, with a version script: the one that rustc makes exports
# what it likes, and a linker takes one script only.
set -eu
lib=$1/lib include=$1/include archive=$1/lib/libcomity.a exports=$1/lib/libcomity.map table=crates/comity-c/abi.txt
symbols=$(awk '/^function / { split($0, part, "("); n = split(part[1], word, /[ *]/); print word[n] }' $table)
[ -n "$symbols" ] || { echo "$table has no functions"; exit 1; }
mkdir -p "$lib/pkgconfig" "$lib/cmake/comity" "$include"
cp "$2" "$archive"
[ -z "$STRIP" ] || $STRIP "$archive"
cp crates/comity-c/include/comity.h crates/comity-c/include/comity.hpp "$include"

# `system`: libraries with which a program with the archive must be linked, as rustc says. The number in a library's name, and the version node,
# change when a line of the table does.
if [ -n "$MACOS" ]; then
    soname=libcomity.0.dylib link=libcomity.dylib system="-lSystem -lc -lm" before=_
    # Zig's linker takes the list and exports other symbols too. It refuses `-exported_symbol`.
    printf '_%s\n' $symbols > "$exports"
    set -- -dynamiclib "-Wl,-install_name,@rpath/$soname" -Wl,-dead_strip "-Wl,-exported_symbols_list,$exports"
else
    soname=libcomity.so.0 link=libcomity.so system="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc" before=
    echo "COMITY_0 { global: comity_*; local: *; };" > "$exports"
    set -- -shared "-Wl,-soname,$soname" "-Wl,--version-script=$exports" -Wl,--gc-sections -Wl,--as-needed -Wl,-z,defs -Wl,-z,relro,-z,now
    [ -z "$STRIP" ] || set -- "$@" -Wl,--strip-debug
fi
for symbol in $symbols; do set -- "$@" "-Wl,-u,$before$symbol"; done
$CC "$@" "$archive" $system -o "$lib/$soname"
rm "$exports"
ln -sf $soname "$lib/$link"

# For Swift: `import CComity`. The name Comity is left for a package of Swift's own.
cat > "$include/module.modulemap" << 'END'
module CComity {
    header "comity.h"
    link "comity"
    export *
}
END
# Each of these says where it lies by where it is found, so that the folder can be moved.
cat > "$lib/pkgconfig/comity.pc" << END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: comity
Description: Collective communication for machine learning, on the computers people own
Version: $VERSION
Libs: -L\${libdir} -lcomity
Libs.private: $system
Cflags: -I\${includedir}
END
cat > "$lib/cmake/comity/comity-config.cmake" << END
get_filename_component(_comity_prefix "\${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET comity::comity)
  add_library(comity::comity SHARED IMPORTED)
  set_target_properties(comity::comity PROPERTIES
    IMPORTED_LOCATION "\${_comity_prefix}/lib/$soname"
    IMPORTED_SONAME "$soname"
    INTERFACE_INCLUDE_DIRECTORIES "\${_comity_prefix}/include")
  add_library(comity::comity_static STATIC IMPORTED)
  set_target_properties(comity::comity_static PROPERTIES
    IMPORTED_LOCATION "\${_comity_prefix}/lib/libcomity.a"
    INTERFACE_LINK_LIBRARIES "$(echo $system | tr ' ' ';')"
    INTERFACE_INCLUDE_DIRECTORIES "\${_comity_prefix}/include")
endif()
unset(_comity_prefix)
END
# Below 1.0 a minor version may change what an earlier one promised.
cat > "$lib/cmake/comity/comity-config-version.cmake" << END
set(PACKAGE_VERSION "$VERSION")
set(_comity_own "$VERSION")
END
cat >> "$lib/cmake/comity/comity-config-version.cmake" << 'END'
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _comity_own "${_comity_own}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _comity_asked "${PACKAGE_FIND_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR NOT _comity_own STREQUAL _comity_asked)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
END
