//! `--backend` of `comity launch`, which also takes the names that `mlx.launch` has.

use comity::BackendKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The variable that says to a rank that rings go before other plans.
const RING: (&str, &str) = ("MLX_JACCL_RING", "1");

/// MLX's names beside ours, and what they are here.
const MLX: [(&str, BackendKind); 2] = [("ring", BackendKind::Any), ("jaccl-ring", BackendKind::Jaccl)];

/// Backend for the ranks' calls, by the user's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedBackend {
    /// The user's word for it.
    pub name: &'static str,
    /// The backend itself.
    pub kind: BackendKind,
}

impl AskedBackend {
    /// The kind of this name; none where there is no such name.
    pub fn named(name: &str) -> Option<Self> {
        let ours = BackendKind::ALL.map(|kind| (kind.name(), kind));
        let (name, kind) = ours.into_iter().chain(MLX).find(|(known, _)| *known == name)?;
        Some(Self { name, kind })
    }

    /// A variable of the ranks that goes with this name.
    pub fn variable(name: &str) -> Option<(&'static str, &'static str)> {
        (name == "jaccl-ring").then_some(RING)
    }

    /// Every name.
    pub fn all() -> impl Iterator<Item = &'static str> {
        BackendKind::ALL.into_iter().map(BackendKind::name).chain(MLX.map(|(name, _)| name))
    }
}

impl Serialize for AskedBackend {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.name.serialize(to)
    }
}

impl<'a> Deserialize<'a> for AskedBackend {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        Self::named(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("there is no such backend"))
    }
}
