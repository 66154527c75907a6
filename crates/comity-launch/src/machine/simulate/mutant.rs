//! A launcher with a mistake, to prove that the simulator finds it.
use crate::machine::{Action, ElasticTerms, Ending, Event, Role, StopOrder, StopReason};

scope::listed! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Mutant {
        /// Ranks that do not end after SIGTERM are not killed.
        NeverKills,
        /// Ranks are killed where they ought to have time to end.
        KillsAtOnce,
        /// Ranks have no time to report a failure.
        NoGrace,
        /// Processes that ranks leave are left.
        LeavesStrays,
        /// Words of the ranks about each other are not heard.
        DeafToBlames,
        /// A rank's word is taken for that of the rank it names.
        TurnsBlames,
        /// The loss of a host is not noticed.
        DeafToLosses,
        /// A host that cannot run its part is taken for one that can.
        StartsAnyway,
        /// The user's signals are not heard.
        DeafToUser,
        /// A host goes on when its launcher is gone.
        OutlivesLauncher,
        /// A launcher goes on when the process that the user started is gone.
        OutlivesUser,
        /// Every failure is an exit with code 1.
        OneCode,
        /// Exit code 0 counts as a failure.
        BlamesTheDone,
        /// The first end of a rank is not noticed.
        MissesTheFirst,
        /// Ranks that are stopped are not found.
        FindsNoStopped,
        /// The last line comes twice.
        SaysTwice,
        /// It waits for a pipe for as long as it is open.
        WaitsForPipes,
        /// Launchers of other nodes are not heard.
        DeafToNodes,
        /// A rank that could not be started is not understood as a failure.
        IgnoresUnstarted,
        /// Ranks are not started again.
        LeavesDown,
        /// They are started again without a pause.
        StartsAtOnce,
        /// They are started again for ever.
        NeverGivesUp,
        /// The job goes on with fewer ranks than it may.
        NeedsNobody,
        /// A rank that was started again counts as taken in.
        CountsJoiners,
        /// The group's word that it took in a rank is not heard.
        DeafToJoins,
        /// The others end where a rank is lost.
        EndsTheOthers,
    }
}

impl Mutant {
    /// Terms of a machine with this mistake.
    pub(super) fn terms(self, right: ElasticTerms) -> ElasticTerms {
        match self {
            Self::NeverGivesUp => ElasticTerms { restarts: u32::MAX, ..right },
            Self::NeedsNobody => ElasticTerms { fewest: 0, ..right },
            _ => right,
        }
    }

    /// Events that the machine gets in the place of this one. `is_first`: no rank ended there before.
    pub(super) fn hear(self, role: Role, event: Event, is_first: bool) -> Vec<Event> {
        let drops = match (self, &event) {
            (Self::DeafToBlames, Event::Blames { .. })
            | (Self::DeafToJoins, Event::Joined { .. })
            | (Self::DeafToLosses, Event::HostLost { .. })
            | (Self::DeafToUser, Event::Stop(StopReason::Interrupted { .. }))
            | (Self::FindsNoStopped, Event::Stopped { .. })
            | (Self::DeafToNodes, Event::OtherEnds { .. })
            | (Self::IgnoresUnstarted, Event::Unstarted { .. }) => true,
            (Self::OutlivesLauncher, Event::Stop(StopReason::Orphaned)) => role == Role::Host,
            (Self::OutlivesUser, Event::Stop(StopReason::Orphaned)) => role != Role::Host,
            (Self::MissesTheFirst, Event::Ended { .. }) => is_first,
            _ => false,
        };
        if drops {
            return Vec::new();
        }
        vec![match (self, event) {
            (Self::TurnsBlames, Event::Blames { by, rank }) => Event::Blames { by: rank, rank: by },
            (Self::StartsAnyway, Event::HostRefused { host, .. }) => Event::HostReady { host },
            (Self::OneCode, Event::Ended { rank, ending, memory }) if ending.is_failure() => {
                Event::Ended { rank, ending: Ending::Exit(1), memory }
            }
            (Self::BlamesTheDone, Event::Ended { rank, memory, .. }) if role != Role::Host => {
                Event::Ended { rank, ending: Ending::Exit(1), memory }
            }
            (Self::NoGrace, event @ Event::Ended { ending, .. })
                if ending.is_failure() && role != Role::Host =>
            {
                return vec![event, Event::Stop(StopReason::TimedOut)];
            }
            (Self::WaitsForPipes, Event::Output { open: true, written, .. }) => {
                Event::Output { open: true, pending: true, written }
            }
            (_, event) => event,
        }]
    }

    /// Changes what the machine wants. `runs`: ranks were started before.
    pub(super) fn act(self, actions: &mut Vec<Action>, runs: bool) {
        match self {
            Self::NeverKills => actions.retain(|a| *a != Action::End(StopOrder::Kill)),
            Self::KillsAtOnce => {
                for action in actions.iter_mut().filter(|a| **a == Action::End(StopOrder::Term)) {
                    *action = Action::End(StopOrder::Kill);
                }
            }
            Self::LeavesStrays => actions.retain(|a| !matches!(a, Action::EndStrays(_))),
            Self::LeavesDown if runs => actions.retain(|a| !matches!(a, Action::Start(_))),
            Self::EndsTheOthers if actions.iter().any(|a| matches!(a, Action::SayLost { .. })) => {
                actions.push(Action::End(StopOrder::Term));
            }
            Self::SaysTwice if actions.contains(&Action::SayVerdict) => actions.push(Action::SayVerdict),
            _ => {}
        }
    }
}
