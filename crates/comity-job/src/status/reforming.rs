//! Parts of new groups that a rank makes while its group forms again.

use crate::Result;
use comity_membership::{Plan, Refusal};

/// Makes a rank's parts of the groups that may follow its group.
pub trait Parts {
    /// Returns what a plan of these members says beside their names, first the number of the group.
    fn draft(&mut self, members: &[usize]) -> Result<Vec<u8>>;

    /// Make this rank's part of a plan's group.
    fn form(&mut self, plan: &Plan) -> Result<()>;
}

/// End of an agreement on the group that follows one.
#[derive(Debug)]
pub enum Outcome {
    /// This plan's group follows. The rank may not be in it.
    Follows(Plan),
    /// None follows for now.
    Refused(Refusal),
}
