//! Configurations that make no sense.

use super::{ErrorKind, words::Printable};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Fault of a configuration, and its place.
///
/// ```
/// use comity::{Config, ErrorKind};
///
/// let e = Config::from_vars(|name| (name == "COMITY_LINKS").then(|| "telepathy".into())).unwrap_err();
/// let ErrorKind::Config(why) = e.kind() else { panic!() };
/// assert_eq!(why.key.as_deref(), Some("COMITY_LINKS"));
/// assert_eq!(why.value.as_deref(), Some("telepathy"));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file that it is about.
    pub file: Option<PathBuf>,
    /// The line in the file, from 1, where the file's form is wrong.
    pub line: Option<usize>,
    /// The column in that line, from 1.
    pub column: Option<usize>,
    /// The variable, or the setting's name where a program gave it.
    pub key: Option<String>,
    /// Its value, where it is to blame and no secret.
    pub value: Option<String>,
    words: Box<str>,
}

impl ConfigError {
    /// An error of these words. The other methods say what it is about.
    ///
    /// ```
    /// use comity::{ConfigError, Error};
    ///
    /// let e: Error = ConfigError::new("no such colour").with_key("colour").with_value("mauve").into();
    /// assert_eq!(e.to_string(), "configuration: no such colour");
    ///
    /// let why = ConfigError::new("is not JSON").with_file("hosts.json").at(3, 14);
    /// assert_eq!((why.line, why.column), (Some(3), Some(14)));
    /// ```
    pub fn new(words: impl Into<String>) -> Self {
        Self { file: None, line: None, column: None, key: None, value: None, words: words.into().into() }
    }

    /// Say which file it is about.
    #[must_use]
    pub fn with_file(mut self, file: impl AsRef<Path>) -> Self {
        self.file = Some(file.as_ref().into());
        self
    }

    /// Say at which line and column of the file, both from 1.
    #[must_use]
    pub fn at(mut self, line: usize, column: usize) -> Self {
        self.line = Some(line);
        self.column = Some(column);
        self
    }

    /// Say which variable or setting it is about.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Say which value is wrong. It must be no secret.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// `e`, which says more of this in its words, at this one's place in a file.
    #[doc(hidden)]
    pub fn place(self, e: super::Error) -> super::Error {
        let ErrorKind::Config(why) = e.kind() else { return e };
        let why = why.clone();
        Self { file: self.file.or(why.file), line: self.line, column: self.column, ..why }.into()
    }

    /// The same, from the variable `key`, which its words say first.
    #[doc(hidden)]
    pub fn named_by(self, key: &str) -> Self {
        Self { words: format!("{key}: {}", self.words).into(), ..self }.with_key(key)
    }
}

/// Without control characters, which names of files may hold.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.words).fmt(f)
    }
}

impl std::error::Error for ConfigError {}
