//! Types that the table of transports makes: [`LinkKind`] with its names and numbers, the settings, and a process's open transports.

use super::{Announced, Card, LinkKind, Transport};
use std::fmt;

/// Makes a module, a [`LinkKind`] and settings of each line of the table in `lib.rs`.
macro_rules! transports {
    ($($folder:ident => $Kind:ident = $wire:literal, $name:literal, $medium:literal: $about:literal;)*) => {
        $(pub mod $folder;)*

        /// The kind of a link between two ranks: which medium carries its bytes.
        ///
        /// ```
        /// use comity::LinkKind;
        ///
        /// assert_eq!(LinkKind::Shm.name(), "shm");
        /// assert_eq!(LinkKind::from_name("tcp"), Some(LinkKind::Tcp));
        /// assert_eq!(LinkKind::Rdma.to_string(), "rdma");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum LinkKind {
            $(#[doc = $about] $Kind,)*
            /// Whatever MPI chose.
            Mpi,
        }

        impl LinkKind {
            /// Kinds of the table, in the order in which pairs prefer them.
            pub const LISTED: &'static [Self] = &[$(Self::$Kind,)*];

            /// The name in reports, flags and variables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Kind => $name,)*
                    Self::Mpi => "mpi",
                }
            }

            /// The medium, as it stands in sentences.
            pub const fn medium(self) -> &'static str {
                match self {
                    $(Self::$Kind => $medium,)*
                    Self::Mpi => "MPI",
                }
            }

            /// The number of a listed kind between processes.
            pub const fn wire(self) -> Option<u8> {
                match self {
                    $(Self::$Kind => Some($wire),)*
                    Self::Mpi => None,
                }
            }

            /// Returns the properties that hold everywhere, if it is listed.
            pub fn about(self) -> Option<$crate::About> {
                match self {
                    $(Self::$Kind => Some(<$folder::$Kind as Transport>::about()),)*
                    Self::Mpi => None,
                }
            }
        }

        /// Settings of each transport that users may choose.
        #[derive(Clone, Debug, Default)]
        pub struct TransportSettings {
            $(pub(crate) $folder: <$folder::$Kind as Transport>::Settings,)*
        }

        impl TransportSettings {
            /// Take what variables say.
            pub fn read(&mut self, vars: &dyn Variables) -> Result<()> {
                $(<$folder::$Kind as Transport>::read(&mut self.$folder, vars)?;)*
                Ok(())
            }

            /// Checks the settings, in a job of `size` ranks.
            pub fn check(&self, size: usize) -> Result<()> {
                $(<$folder::$Kind as Transport>::check(&self.$folder, size)?;)*
                Ok(())
            }

            /// Returns `comity info`'s report on a kind that is listed.
            pub fn note(&self, kind: LinkKind, seen: Seen<'_>) -> Option<TransportInfo> {
                match kind {
                    $(LinkKind::$Kind => Some(<$folder::$Kind as Transport>::note(&self.$folder, seen)),)*
                    LinkKind::Mpi => None,
                }
            }
        }

        impl Transports {
            /// Finds the transports of the `allowed` kinds that this process can use.
            pub fn find(allowed: Kinds, settings: &TransportSettings, job: &JobInfo) -> Result<Self> {
                let mut all = Self::default();
                $(if allowed.has(LinkKind::$Kind)
                    && let Some(found) = <$folder::$Kind as Transport>::find(&settings.$folder, job)?
                {
                    all.add(LinkKind::$Kind, Box::new(found));
                })*
                Ok(all)
            }
        }

        #[cfg(test)]
        const FOLDERS: &[&str] = &[$(stringify!($folder),)*];
    };
}

impl LinkKind {
    /// The kind of this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::LISTED.iter().copied().chain([Self::Mpi]).find(|k| k.name() == name)
    }

    /// The listed kind of this number.
    pub fn from_wire(wire: u8) -> Option<Self> {
        Self::LISTED.iter().copied().find(|k| k.wire() == Some(wire))
    }

    /// Returns the kinds that link processes, so that users may choose among them.
    pub fn choices() -> impl Iterator<Item = Self> {
        Self::LISTED.iter().copied().filter(|k| k.about().is_some_and(|a| a.between_processes))
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Some of the listed kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u32);

impl Kinds {
    /// Returns the kinds that pairs may use where no user has chosen.
    pub fn usual() -> Self {
        LinkKind::choices().filter(|k| k.about().is_some_and(|a| a.by_default)).collect()
    }

    pub fn has(self, kind: LinkKind) -> bool {
        kind.wire().is_some_and(|n| self.0 >> n & 1 == 1)
    }

    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub fn iter(self) -> impl Iterator<Item = LinkKind> {
        LinkKind::LISTED.iter().copied().filter(move |k| self.has(*k))
    }
}

impl FromIterator<LinkKind> for Kinds {
    fn from_iter<I: IntoIterator<Item = LinkKind>>(kinds: I) -> Self {
        Self(kinds.into_iter().filter_map(LinkKind::wire).fold(0, |set, n| set | 1 << n))
    }
}

/// Transports that a process has opened, in the table's order.
#[derive(Debug, Default)]
pub struct Transports(Vec<(LinkKind, Box<dyn Transport>)>);

impl Transports {
    pub(super) fn add(&mut self, kind: LinkKind, transport: Box<dyn Transport>) {
        self.0.push((kind, transport));
    }

    /// Returns their announcement to the others.
    pub fn announce(&self) -> Announced {
        self.0.iter().map(|(kind, t)| (*kind, t.announce())).collect()
    }

    /// All have met.
    pub fn meet(&mut self, me: usize, cards: &[Card]) {
        self.0.iter_mut().for_each(|(_, t)| t.meet(me, cards));
    }

    pub fn kinds(&self) -> Kinds {
        self.0.iter().map(|(kind, _)| *kind).collect()
    }

    pub fn get(&self, kind: LinkKind) -> Option<&dyn Transport> {
        self.0.iter().find(|(k, _)| *k == kind).map(|(_, t)| &**t)
    }

    pub fn iter(&self) -> impl Iterator<Item = (LinkKind, &dyn Transport)> {
        self.0.iter().map(|(kind, t)| (*kind, &**t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FOLDERS;

    #[test]
    fn the_table_names_every_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let mut there: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|f| f.unwrap().path())
            .filter(|f| f.join("mod.rs").exists())
            .map(|f| f.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut listed: Vec<_> = FOLDERS.iter().map(|f| (*f).to_owned()).collect();
        there.sort();
        listed.sort();
        assert_eq!(there, listed, "a folder in {folder} without its line in the table does nothing");
    }

    #[test]
    fn words_and_numbers_are_one_kind_each() {
        for &kind in LinkKind::LISTED {
            assert_eq!(LinkKind::from_name(kind.name()), Some(kind));
            assert_eq!(kind.wire().and_then(LinkKind::from_wire), Some(kind));
            assert_eq!(Kinds::from_iter([kind]).iter().collect::<Vec<_>>(), [kind]);
        }
        assert_eq!(LinkKind::from_name("mpi"), Some(LinkKind::Mpi));
        assert!(Kinds::from_iter([LinkKind::Mpi]).is_empty() && LinkKind::from_wire(u8::MAX).is_none());
    }
}
