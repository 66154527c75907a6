//! [`Reform`] with a mistake, to prove that the simulator finds it.

use crate::{Message, ReformAction};

scope::listed! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Mutant {
        /// A member answers an attempt though a later one has its promise.
        ForgetsPromises,
        /// A member forgets its vote.
        ForgetsVotes,
        /// Whoever calls the roll decides as soon as it has asked for votes.
        NeedsNoVotes,
        /// A plan is put to the vote before all have made their parts.
        WaitsForNobody,
        /// A member uses its part as soon as it stands, before anybody has said that all do.
        UsesItsPart,
        /// The plan says nothing of those that left.
        NamesNobody,
        /// A member that is not in the plan is not told.
        TellsMembersOnly,
        /// A member that has the plan does not answer those that have not.
        KeepsDecision,
        /// Nothing is said again to the next member that calls the roll.
        ForgetsToAsk,
        /// A member that is late ends the wait for itself alone, and without a word to anybody.
        WaitsForEver,
        /// A plan leaves out the last of its members.
        LeavesOneOut,
        /// A member does not say whom it has lost.
        HidesLosses,
    }
}

impl Mutant {
    /// Change what a member does. `is_first`: it has just asked.
    pub(super) fn act(self, is_first: bool, actions: &mut Vec<ReformAction>) {
        match self {
            Self::ForgetsToAsk if !is_first => actions.retain(|a| {
                !matches!(a, ReformAction::Send { message: Message::Ready { .. } | Message::Call { .. }, .. })
            }),
            Self::WaitsForEver => actions.retain(|a| !matches!(a, ReformAction::Refused { .. })),
            Self::KeepsDecision => actions.retain(|a| {
                !matches!(a, ReformAction::Send { message: Message::Decided { .. }, .. })
            }),
            Self::TellsMembersOnly => actions.retain(|a| {
                !matches!(a, ReformAction::Send { to, message: Message::Decided { plan } } if !plan.members.contains(to))
            }),
            Self::HidesLosses => {
                for action in actions {
                    if let ReformAction::Send { message: Message::Ready { gone, .. }, .. } = action {
                        gone.clear();
                    }
                }
            }
            Self::LeavesOneOut => {
                for action in actions {
                    if let ReformAction::Draft { members } = action {
                        members.pop();
                    }
                }
            }
            _ => {}
        }
    }
}
