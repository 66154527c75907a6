//! Enums whose variants have names.

/// Declares an enum with a name for each variant: all of them in their order, the name of one, the one of a name, and how it displays.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $what:literal {
            $($(#[$of_variant:meta])* $variant:ident $(= $number:literal)? => $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$of_variant])* $variant $(= $number)?,)*
        }

        impl $name {
            #[doc = concat!("Every ", $what, ", in the order of its number.")]
            $vis const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// The name in messages, flags, variables and files.
            #[inline]
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            #[doc = concat!("The ", $what, " of this name; `None` for any other text.")]
            $vis fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
