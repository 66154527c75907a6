//! Membership with a mistake, to prove that the simulator finds it.

use super::{SimulatedFailure, member::Occasion, scenario::Scenario};
use crate::{Action, Heard, Note};

scope::listed! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Mutant {
        /// The member after the culprit is named.
        WrongCulprit,
        /// Every reason replaces the one before.
        LastReason,
        /// A leave in good order is not heard, so the member's later end counts as a death.
        DeafToLeave,
        /// A member that leaves a failed group says that it leaves in good order.
        LeavesFailed,
        /// Notes on groups that are not open yet are forgotten.
        ForgetsEarly,
        /// Nobody is given up.
        IgnoresSilence,
        /// The rank that passes it on is named as the one that saw it.
        WrongWitness,
        /// Nobody is asked whether it lives.
        AsksNobody,
        /// In a large job: ranks that hear of a failure do not pass it on.
        NoForward,
        /// That an edge is gone is not passed on.
        KeepsLosses,
        /// Nobody takes note of edges that are gone.
        DeafToLosses,
        /// Neighbours that end are not replaced.
        NoNewNeighbours,
    }
}

impl Mutant {
    /// Mistakes in the graph of large jobs.
    pub(super) const SPARSE: [Self; 4] =
        [Self::NoForward, Self::KeepsLosses, Self::DeafToLosses, Self::NoNewNeighbours];

    /// Change what a rank hears.
    pub(super) fn hear(
        self,
        rank: usize,
        heard: &mut Vec<(usize, Heard<SimulatedFailure>)>,
        opened: impl Fn(u64) -> bool,
    ) {
        match self {
            Self::DeafToLeave => heard.retain(|(_, h)| !matches!(told(h), Some(Note::Leave { .. }))),
            Self::ForgetsEarly => heard.retain(|(_, h)| match told(h) {
                Some(Note::Leave { group_id } | Note::Abort { group_id, .. }) => opened(*group_id),
                _ => true,
            }),
            Self::DeafToLosses => heard.retain(|(_, h)| !matches!(told(h), Some(Note::Lost { .. }))),
            Self::WrongWitness if rank % 2 == 1 => {
                for (_, h) in heard {
                    if let Heard::Note(note) = h
                        && let Note::Abort { failure: SimulatedFailure { by, .. }, .. } = said_mut(note)
                    {
                        *by = 0;
                    }
                }
            }
            _ => {}
        }
    }

    /// Change what a rank does.
    pub(super) fn act(
        self,
        rank: usize,
        occasion: Occasion,
        actions: &mut Vec<Action<SimulatedFailure>>,
        s: &Scenario,
    ) {
        let aborts = |a: &Action<SimulatedFailure>| matches!(a, Action::Tell { note, .. } if matches!(said(note), Note::Abort { .. }));
        let losses = |a: &Action<SimulatedFailure>| matches!(a, Action::Tell { note, .. } if matches!(said(note), Note::Lost { by, .. } if *by != rank));
        match self {
            Self::AsksNobody => actions.retain(|a| !matches!(a, Action::Ask { .. })),
            Self::KeepsLosses if occasion == Occasion::Hear => actions.retain(|a| !losses(a)),
            Self::NoNewNeighbours => actions.retain(|a| !matches!(a, Action::Dial { .. })),
            Self::NoForward if occasion == Occasion::Hear => actions.retain(|a| !aborts(a)),
            Self::WrongCulprit if occasion == Occasion::Tick || occasion == Occasion::Hear => {
                for action in actions.iter_mut() {
                    if let Action::Fail { group_id, failure } = action
                        && let Some(g) = s.groups.iter().find(|g| g.group_id == *group_id)
                    {
                        failure.culprit = (failure.culprit + 1) % g.members.len();
                    }
                }
            }
            Self::LeavesFailed if occasion == Occasion::Leave => {
                for action in actions.iter_mut() {
                    if let Action::Tell { note, .. } = action
                        && let note = said_mut(note)
                        && let Note::Abort { group_id, .. } = note
                    {
                        *note = Note::Leave { group_id: *group_id };
                    }
                }
            }
            _ => {}
        }
    }
}

/// News in a note, also where it is passed on.
fn said(note: &Note<SimulatedFailure>) -> &Note<SimulatedFailure> {
    if let Note::Spread { note, .. } = note { note } else { note }
}

fn said_mut(note: &mut Note<SimulatedFailure>) -> &mut Note<SimulatedFailure> {
    if let Note::Spread { note, .. } = note { note } else { note }
}

fn told(heard: &Heard<SimulatedFailure>) -> Option<&Note<SimulatedFailure>> {
    if let Heard::Note(note) = heard { Some(said(note)) } else { None }
}
