//! Libraries found at run time: trying their names, and tables of their functions.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::{
    error::Error as _,
    ffi::{OsStr, OsString, c_int},
};

#[derive(Clone, Copy, Debug)]
pub(crate) enum SymbolScope {
    /// Nobody.
    Own,
    /// Libraries that are loaded later, such as the library's own plugins.
    Process,
}

/// The first library of these names that loads, with its name; otherwise each name with the loader's words.
///
/// # Safety
/// Loading runs constructors: each name, where it is found, is of a library that a program may link to.
pub(crate) unsafe fn load_first<N: AsRef<OsStr>>(
    names: &[N],
    scope: SymbolScope,
) -> Result<(Library, &OsStr), Vec<String>> {
    let flags = match scope {
        SymbolScope::Own => RTLD_NOW | RTLD_LOCAL,
        SymbolScope::Process => RTLD_NOW | RTLD_GLOBAL,
    };
    let mut tried = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        // SAFETY: the caller's promise.
        match unsafe { Library::open(Some(name), flags as c_int) } {
            Ok(lib) => return Ok((lib, name)),
            Err(e) => {
                // The error itself says no more than that it failed.
                let why = e.source().map_or_else(|| e.to_string(), ToString::to_string);
                tried.push(format!("{} ({why})", name.to_string_lossy()));
            }
        }
    }
    Err(tried)
}

/// The name that the user gave in `variable`, if any.
pub(crate) fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|n| !n.is_empty())
}

/// A table of a library's functions, all of which it must have but for those that are `optional`:
///
/// ```text
/// functions! {
///     /// The driver's functions.
///     pub(super) struct Functions {
///         init "cuInit" (c_uint) -> Code;
///     }
///     optional {
///         words "cuGetErrorString" (Code, *mut *const c_char) -> Code;
///     }
/// }
/// // SAFETY: these are the signatures of the library's header.
/// let call = unsafe { Functions::load(lib) }.map_err(|missing| ...)?;
/// ```
///
/// `struct Functions<H>` takes one type, for libraries whose handles differ.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident $(<$handle:ident>)? {
            $($field:ident $symbol:literal ($($arg:ty),* $(,)?) $(-> $out:ty)?;)*
        }
        $(optional {
            $($maybe:ident $its_symbol:literal ($($its_arg:ty),* $(,)?) $(-> $its_out:ty)?;)*
        })?
    ) => {
        $(#[$about])*
        $vis struct $name $(<$handle>)? {
            // SAFETY: each is called with what the library's header says it takes, where the call stands.
            $($vis $field: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
            // SAFETY: the same.
            $($($vis $maybe: Option<unsafe extern "C" fn($($its_arg),*) $(-> $its_out)?>,)*)?
        }

        /// Addresses tell nobody anything.
        impl $(<$handle>)? ::std::fmt::Debug for $name $(<$handle>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl $(<$handle>)? $name $(<$handle>)? {
            /// The name of the first that is missing is the error. Else the library stays loaded until the process ends.
            ///
            /// # Safety
            /// The signatures are the library's.
            unsafe fn load(lib: ::libloading::os::unix::Library) -> ::std::result::Result<Self, &'static str> {
                let functions = Self {
                    $($field: {
                        // SAFETY: the caller's promise.
                        let f = unsafe { lib.get(concat!($symbol, "\0").as_bytes()) };
                        *f.map_err(|_| $symbol)?
                    },)*
                    $($($maybe: {
                        // SAFETY: the caller's promise.
                        let f = unsafe { lib.get(concat!($its_symbol, "\0").as_bytes()) };
                        f.ok().map(|f| *f)
                    },)*)?
                };
                ::std::mem::forget(lib);
                Ok(functions)
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_char;

    functions! {
        /// Also with a type of handle.
        struct Text<H> {
            length "strlen" (H) -> usize;
        }
    }

    functions! {
        #[allow(dead_code)]
        struct Odd {
            length "strlen" (*const c_char) -> usize;
            odd "no_such_function_of_anyone" ();
        }
    }

    #[test]
    fn functions_are_called_and_the_missing_one_is_named() {
        let lib = Library::this;
        // SAFETY: C's own signature, and what is called is a text.
        let length = unsafe { Text::<*const c_char>::load(lib()).map(|t| (t.length)(c"four".as_ptr())) };
        assert_eq!(length, Ok(4));
        // SAFETY: C's own signature; the other is not there.
        let odd = unsafe { Odd::load(lib()) };
        assert_eq!(odd.err(), Some("no_such_function_of_anyone"));
    }

    #[test]
    fn every_name_that_was_tried_is_told() {
        // SAFETY: there is no such library.
        let tried = unsafe { load_first(&["libno-such-1.so", "libno-such-2.so"], SymbolScope::Own) }.err();
        let tried = tried.unwrap_or_default();
        assert!(tried.len() == 2 && tried[0].starts_with("libno-such-1.so ("), "{tried:?}");
    }
}
