//! The small files beside libcomity.

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// For Swift: `import CComity`. The name Comity is left for a package of Swift's own.
pub(super) const MODULE_MAP: &str = "\
module CComity {
    header \"comity.h\"
    link \"comity\"
    export *
}
";

/// It says where it lies by where it is found, so that the folder can be moved.
pub(super) fn pkg_config(system: &[&str]) -> String {
    format!(
        "\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: comity
Description: Collective communication for machine learning, on the computers people own
Version: {VERSION}
Libs: -L${{libdir}} -lcomity
Libs.private: {}
Cflags: -I${{includedir}}
",
        system.join(" ")
    )
}

/// Two targets, found from where this file is.
pub(super) fn cmake(soname: &str, system: &[&str]) -> String {
    format!(
        "\
get_filename_component(_comity_prefix \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)
if(NOT TARGET comity::comity)
  add_library(comity::comity SHARED IMPORTED)
  set_target_properties(comity::comity PROPERTIES
    IMPORTED_LOCATION \"${{_comity_prefix}}/lib/{soname}\"
    IMPORTED_SONAME \"{soname}\"
    INTERFACE_INCLUDE_DIRECTORIES \"${{_comity_prefix}}/include\")
  add_library(comity::comity_static STATIC IMPORTED)
  set_target_properties(comity::comity_static PROPERTIES
    IMPORTED_LOCATION \"${{_comity_prefix}}/lib/libcomity.a\"
    INTERFACE_LINK_LIBRARIES \"{}\"
    INTERFACE_INCLUDE_DIRECTORIES \"${{_comity_prefix}}/include\")
endif()
unset(_comity_prefix)
",
        system.join(";")
    )
}

/// Below 1.0 a minor version may change what an earlier one promised.
pub(super) fn cmake_version() -> String {
    format!(
        "\
set(PACKAGE_VERSION \"{VERSION}\")
set(_comity_own \"{VERSION}\")
string(REGEX MATCH \"^[0-9]+\\\\.[0-9]+\" _comity_own \"${{_comity_own}}\")
string(REGEX MATCH \"^[0-9]+\\\\.[0-9]+\" _comity_asked \"${{PACKAGE_FIND_VERSION}}\")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR NOT _comity_own STREQUAL _comity_asked)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"
    )
}
